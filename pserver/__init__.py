"""The parameter server: a fenced log of additions in Redis or Valkey, folded into rows.

Read in this order: `gains` (what a push carries), `rows` (what is stored), `store` (the protocol
every store keeps, and the laws it promises), `memory_store` and `redis_store` with `functions.lua`
(the two that keep it), `nodes` (the servers behind the latter), `table` (rows in this process's
memory), `replica` (a table that follows the logs), `keeper` (folds logs into rows).
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
