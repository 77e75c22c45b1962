"""Records of runs: demos, replays of logs, fits, experiments with their arms, promotions.

`tracked_run.py` is a record. `run_registry.py` is the folder that commands write records to and
read them from. `run_comparison.py` shows several records beside each other.
`run_recorder.py` records a run while its command works, and `mlflow_target.py` copies records to an
MLflow server.
"""
