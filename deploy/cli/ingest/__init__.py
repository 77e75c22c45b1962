"""`headrace ingest` and `headrace topics`: events, their topics and their repair.

`ingest_commands` has the group and its processes, `ingest_replay` the replay, `ingest_dead_letters`
the commands for dead letters, and `topic_commands` those for the topics of running models.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
