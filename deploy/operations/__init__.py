"""Commands for operators: inspect and check a store, remove a model, switch aliases.

`doctor.py` runs the checks of `server_checks.py`, `cluster_checks.py` and `model_checks.py`, which
are pure functions from a survey to findings. `broker_clocks.py` measures and checks the clocks of
Kafka's brokers. `inspection.py` prints the buckets of a model.

`live_status.py` prints all processes and the coverage of fields, `parked.py` what is parked.

`check_result.py` is a finding, `examples_topic.py` reads what Kafka holds of a model, and
`removal.py` removes a model.
"""
