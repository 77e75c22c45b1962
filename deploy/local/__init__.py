"""Runs a whole pipeline on this machine, for `headrace run`, `headrace up` and `headrace demo`.

Read `pipeline.py` first: it starts Kafka, the store and every part. `supervisor.py` restarts parts
that die. `log_run.py` replays logs through the pipeline, `pipeline_usage.py` keeps it up without
a log, `drain.py` waits until every event is learned, and `services/` starts Kafka and Valkey.

`background_replay.py` replays in a thread with a progress bar, and `kernel_warmup.py` compiles
kernels before the parts start.
"""
