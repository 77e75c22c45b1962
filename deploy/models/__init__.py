"""Model specs that come with headrace, ready to run.

`shipped` finds them by name.
"""
