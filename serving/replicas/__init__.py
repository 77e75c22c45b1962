"""A server's rows, and how fresh they are.

`standing` is what all kinds have alike. `follower` keeps all of a model's rows (a full replica),
`frozen` those of a snapshot; `freshness` measures how fresh.
"""
