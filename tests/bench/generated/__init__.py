"""Twenty generated logs, no two alike, and what each contender learns on them by default."""
