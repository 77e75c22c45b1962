"""Restores a model from a snapshot, or rebuilds it as of a past moment.

`restore` puts a snapshot into a store; `rebuilder` replays examples onto a snapshot, in memory.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
