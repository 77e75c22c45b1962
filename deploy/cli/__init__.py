"""The commands of `headrace`, a file a group. What they start is imported when they are called."""
