"""The rows of a server's models, and their freshness.

`status` defines the interface of all replicas. A `follower` holds all rows of a model and follows
the logs. A `caching_follower` holds the most recently used rows in a `row_cache`. `snapshot_rows`
loads rows that never change. `freshness` measures the delay from a click to its arrival here, and
`replica_metrics` publishes it.
"""
