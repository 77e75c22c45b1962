"""A server's rows, and how fresh they are.

`follower` keeps all of a model's rows (a full replica); `freshness` measures how fresh.
"""
