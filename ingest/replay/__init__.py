"""Replay: writes logs of events from files to Kafka, at any speed.

`replayer` is the process. It reads the logs of `headrace.ingest.logs`, and writes through
`outputs`, plain or resumable. `live_log` gives the events of an old log times of now.

`named_replay` is a replay that the same command continues, `backfill` refuses old events in a topic
that has newer ones, and `request_keys` chooses the partition keys.
"""
