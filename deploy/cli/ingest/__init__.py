"""`headrace ingest`: the collector, replays, the joiner, the archiver, and dead letters.

`ingest_commands` has the group; `ingest_dead_letters` has the commands below `dead-letters`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
