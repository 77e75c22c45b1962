"""Starts a real Kafka and a real Valkey on this machine, for demos, runs and tests.

Start with `services.py`, which starts both. `kafka.py` and `valkey.py` each run one server, as a
`ServerProcess`. `child_process.py` runs a program that ends with this process, `ports.py` reserves
ports, and `kafka_jars.py` provides the jars of Kafka.

`server_process.py` has the lifecycle that both servers share, `waiting.py` waits for a condition,
and `progress.py` shows the steps of a start.
"""
