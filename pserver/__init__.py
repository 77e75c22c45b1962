"""The parameter server: a fenced log of row deltas in Redis or Valkey, folded into rows.

Read in this order: `rows` (the data), `store` (the protocol and the laws it promises), `push_fence`
(why an example counts once), `bucket_generations` (how a reshard replaces buckets), `memory_store`
and `redis_backend` (the two implementations), `replica` (a table that follows the logs), `keeper`
(folds logs into rows), `snapshots` (Parquet files of a model) and `inspection` (the state of
servers and buckets). `intrinsics` holds the compiled memory access of `rows`.

`relay` thins the logs for many servers.
"""
