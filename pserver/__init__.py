"""The parameter server: a fenced log of additions in Redis or Valkey, folded into rows.

Read in this order: `gains` (what a push carries), `store` (the protocol every store keeps, and
the laws it promises), `memory_store` and `redis_store` (the two that keep it), `table` (rows in
this process's memory), `replica` (a table that follows the logs), `keeper` (folds logs into rows).
"""
