"""Learns from files in one process: `headrace fit`.

`sources` has the interface of what is learned. `table_source` reads tables with a layout,
`archive_source` the examples that `headrace ingest sink` wrote. `prefetch` reads ahead in a thread.
`trainer` learns the blocks, and `fit_folder` keeps what a killed fit needs to go on.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
