"""Learns tables in many processes at once, into one parameter server.

`store_trainer` does so on the cores of some machines, from a `staged_run`: the prepared rows in
files (`staged_file`), each of which has a mark in the store (`run_store`). `partition_tasks` is the
work of each process, as `headrace.spark` distributes it. `spark_micro_batches` maps the
micro-batches of a streaming query of Spark to offsets.
"""
