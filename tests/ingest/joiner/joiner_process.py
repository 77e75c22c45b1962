"""Runs a joiner process that tests kill; one JSON argument has its settings."""

import json
import logging
import signal
import sys
import threading

from headrace.ingest.features.fields import parse_fields
from headrace.ingest.features.spec_text import SpecText
from headrace.ingest.joiner.joiner_process import JoinerPacing, JoinerSettings, run_joiner
from headrace.ingest.kafka.settings import KafkaSettings
from headrace.ingest.kafka.topics import EventTopics

if __name__ == "__main__":
    options = json.loads(sys.argv[1])
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    where = SpecText("test.toml", options["spec"])
    run_joiner(
        JoinerSettings(
            instance=options["instance"],
            topics=EventTopics(*options["topics"]),
            metrics_port=options["metrics_port"],
            pace=JoinerPacing(**options["pace"]),
        ),
        KafkaSettings(options["bootstrap"]),
        options["model"],
        parse_fields(where.tables(), where),
        stop,
    )
