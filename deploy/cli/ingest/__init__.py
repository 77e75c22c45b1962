"""`headrace ingest` and `headrace topics`: events, their topics and their repair.

`ingest_commands` has the group and its processes, `ingest_replay` the replay, `ingest_dead_letters`
the commands for dead letters, and `topic_commands` those for the topics of running models.
"""
