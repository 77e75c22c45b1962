"""Rows: what a model consists of, in log entries, in the store, and in memory.

Read in this order: `deltas` (the content of a log entry), `row_codec` (rows as the store keeps
them), `columns` (the memory of a table), `table` (rows found by id).
"""
