"""Logs of events on disk: directories of NDJSON, and tables with a layout of their columns.

`open_log` opens either. `ndjson` reads directories; `table_log` turns the rows of a CSV, Parquet or
NDJSON file into events by a `layout`, and `table_file` reads such a file in blocks of columns. The
replay, the survey, `headrace suggest` and reports all read logs through this folder.

`opening` has `open_log`, and sorts a log that is out of order. `layout_guess` writes a layout from
the first rows, and `guessed_times` finds its times; `layouts` has those of well-known data sets.
`byte_streams` unpacks files. Two modules read single things: `decimal_commas` numbers, and
`line_numbers` the numbers of lines for messages. `ingest.features.cells` reads the cells.
"""
