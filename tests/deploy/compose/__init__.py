"""Starts deploy/compose/compose.yaml with Docker, and checks that it works.

No registry is needed: `stand_ins` builds images that behave like those of Kafka, Valkey and
Prometheus. Grafana has no stand-in, so its service is left out. `engine` runs a Docker daemon of
its own, without changes to the machine's firewall. `make image` builds what is missing.
"""
