"""Keepers: fold the logs into rows, trim the logs, and delete expired rows.

Read in this order: `keeper` (the steps), `bucket_lease` (the state of one held bucket, and when to
fold), `expiry` (which rows to delete), `metrics`, `process` (the keeper as a process, and whether
it makes progress). `store_collectors` has the metrics of the store.
"""
