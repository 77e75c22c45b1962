"""A joiner as a process of its own, for tests to kill: all it must know in one JSON argument."""

import json
import logging
import signal
import sys
import threading

from headrace.ingest.features.fields import parse_fields
from headrace.ingest.features.spec_text import SpecText
from headrace.ingest.joiner.joiner_process import JoinerSettings, run_joiner
from headrace.ingest.kafka.settings import KafkaSettings
from headrace.ingest.kafka.topics import EventTopics

if __name__ == "__main__":
    told = json.loads(sys.argv[1])
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    where = SpecText("test.toml", told["spec"])
    run_joiner(
        JoinerSettings(
            instance=told["instance"],
            topics=EventTopics(*told["topics"]),
            metrics_port=told["metrics_port"],
        ),
        KafkaSettings(told["bootstrap"]),
        told["model"],
        parse_fields(where.tables(), where),
        stop,
    )
