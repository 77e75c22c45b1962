"""Replay: writes logs of events from files to Kafka, at any speed.

`replayer` is the process. It reads the logs of `headrace.ingest.logs`, and writes through
`outputs`, plain or resumable. `live_log` gives the events of an old log times of now.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
