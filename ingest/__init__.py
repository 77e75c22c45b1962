"""Ingestion: turns impressions and clicks into labelled examples, exactly once.

Read in this order: `events` (the contract with producers), `features` (the part of the model spec
that joiner, learner and server must agree on, and its encoder to 64-bit ids), `decoding` (JSON to
columns), `joiner.core` (pure: pairs impressions with clicks), `examples` (the columnar batches it
writes), `kafka` (readers, writers, transactions) and `joiner` (the process).

Around these: `collector` accepts events over HTTP, `client` sends them there, `replay` writes files
to Kafka, `archive` writes topics to Parquet, and `dead_letters` handles unusable events. `status`
publishes the metrics of a process, and `broker_rehearsal` prepares a new broker.

`logs` reads events on disk, and `survey` lists their faults before anything is sent.
"""
