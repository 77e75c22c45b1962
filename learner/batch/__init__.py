"""Learns from files: `headrace fit`.

`sources` is the interface of a source of examples. `table_source` reads tables with a layout,
`archive_source` reads the examples that `headrace ingest sink` wrote, and `event_source` joins logs
of impressions and clicks. `prefetch` reads ahead in a thread. `trainer` learns the blocks, and
`fit_folder` stores the progress of an unfinished fit.

`store_fit` is for tables that many processes learn at once, into one parameter server. There,
`held_out_epochs` decides for all of them when to stop.

`data_files` fetches files at paths or URLs one at a time, and `row_order` measures how far rows are
from the order of time.
"""
