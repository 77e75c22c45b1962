"""Replicas: copies of a model's rows that follow the logs.

Read in this order: `log_chain` (whether a log continues an earlier read), `replica` (all rows of
some buckets), `log_tail` and `partial_replica` (single rows, for processes that cannot hold all).
"""
