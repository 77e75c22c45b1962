"""The thread that reads statuses for the page survives every message and every error."""

import threading

import pytest

from headrace.ingest.kafka.settings import KafkaSettings
from headrace.serving.page import status_reader
from headrace.serving.page.status_reader import StatusReader
from tests.serving.served_models import eventually

DEADLINE_S = 30


def test_the_page_reads_on_after_any_error(monkeypatch: pytest.MonkeyPatch) -> None:
    read_again = threading.Event()
    calls: list[None] = []

    def follow(reader: StatusReader) -> None:
        calls.append(None)
        if len(calls) == 1:
            raise KeyError("a label that every sample has")
        read_again.wait(DEADLINE_S)

    monkeypatch.setattr(status_reader, "_AGAIN_S", 0.0)
    monkeypatch.setattr(StatusReader, "_follow", follow)
    with StatusReader(KafkaSettings("localhost:1"), lambda: 1):
        eventually(lambda: len(calls) == 2)
        read_again.set()
