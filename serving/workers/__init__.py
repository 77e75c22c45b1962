"""One server of several processes that share one copy of the models.

`process` starts them and starts them again: one that follows the logs (`following`), and workers
that answer (`answering`). The rows lie in files of memory (`memory`); how they stand, and which
file is the newest, is said on a board (`board`, `publishing`), which workers read (`reading`), and
so are the aliases (`aliases`).
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
