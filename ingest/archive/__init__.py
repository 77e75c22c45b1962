"""The archiver (`headrace ingest sink`): writes topics to Parquet files by hour, exactly once.

`archiver` gathers records and is the process, `parquet_folder` writes them in steps that count
completely or not at all.

`archived_examples` reads the examples back, in the order of event time.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
