"""A server's rows, and how fresh they are.

`standing` is what all kinds have alike. `follower` keeps all of a model's rows (a full replica),
`bounded` those that are asked for, which lie in `hot_rows`; `frozen` has those of a snapshot.
`freshness` measures how fresh.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
