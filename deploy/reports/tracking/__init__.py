"""Records of runs: demos, replays of logs, fits, experiments with their arms, promotions, windows.

`tracked_run.py` is a record. `run_registry.py` is the folder that commands write records to.
`run_sources.py` makes records from that folder and from Kafka's topics. `run_comparison.py` and
`run_page.py` show several records beside each other. `run_exporter.py` copies records to another
tracker in the background, which `mlflow_target.py` is.

`run_recorder.py` records a run while its command works, and `history_follower.py` exports an
experiment while it runs.
"""
