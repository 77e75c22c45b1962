"""Logs of events on disk: directories of NDJSON, and tables with a layout of their columns.

`open_log` opens either. `ndjson` reads directories; `table_log` turns the rows of a CSV, Parquet or
NDJSON file into events by a `layout`, and `table_file` reads such a file in blocks of columns. The
replay, the survey, `headrace suggest` and reports all read logs through this folder.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
