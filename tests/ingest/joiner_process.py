"""A joiner as a process of its own, for tests to kill: bootstrap, model and topics as arguments."""

import logging
import signal
import sys
import threading

from ingest.joiner import JoinerSettings, run_joiner
from ingest.kafka import EventTopics, KafkaSettings
from tests.ingest.events_of import fields_of

if __name__ == "__main__":
    bootstrap, model, impressions, clicks, dead_letters, metrics_port = sys.argv[1:]
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    run_joiner(
        JoinerSettings(
            topics=EventTopics(impressions, clicks, dead_letters), metrics_port=int(metrics_port)
        ),
        KafkaSettings(bootstrap),
        model,
        fields_of(),
        stop,
    )
