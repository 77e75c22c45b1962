"""Records of runs: demos, replays of logs, fits, experiments with their arms, promotions, windows.

`tracked_run.py` is a record. `run_registry.py` is the folder that commands write records to.
`run_sources.py` makes records from that folder and from Kafka's topics. `run_comparison.py` shows
several records beside each other. `run_recorder.py` records a run while its command works, and
`mlflow_target.py` copies records to an MLflow server.
"""
