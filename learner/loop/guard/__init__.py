"""The guard of a learner: which batches are left out, and why.

Read `batch_guard` first, then `surprise` (when a batch is suspect: the statistic and its sources)
and `stream_change` (for how long).
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
