"""Reads the topic `status` from its start, in a thread, into the history of the page."""

import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from headrace.ingest.errors import StreamError
from headrace.ingest.kafka.protocols import Reader, Record
from headrace.ingest.kafka.reading.consumer import KafkaReader, poll_from_first
from headrace.ingest.kafka.settings import KafkaSettings
from headrace.ingest.kafka.topics import STATUS_TOPIC
from headrace.ingest.status import UnreadableStatus, unpack
from headrace.runtime.background_thread import BackgroundThread
from headrace.serving.page.charts import CURVES
from headrace.serving.page.history import STEP_MS, History

log = logging.getLogger(__name__)

_AGAIN_S = 5.0


class StatusReader(BackgroundThread):
    """Keeps the history up to date, in a thread between `start` and `stop`."""

    def __init__(self, kafka: KafkaSettings, now_ms: Callable[[], int]) -> None:
        super().__init__(self._run, "status page")
        self._kafka, self._now_ms = kafka, now_ms
        self._history, self._lock = History(CURVES), threading.Lock()

    def answer(self, since_ms: int) -> dict[str, Any]:
        """Return the data of the page."""
        with self._lock:
            return self._history.answer(since_ms)

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                self._follow()
            except StreamError as error:
                log.debug("the page has no metrics: %s", error)
            except Exception:
                # any process may write the topic; the page needs this thread
                log.exception("the page reads the topic %s again", STATUS_TOPIC)
            else:
                continue
            self._step()
            self._ended.wait(_AGAIN_S)

    def _follow(self) -> None:
        reader: Reader = KafkaReader(self._kafka, None, [STATUS_TOPIC])
        try:
            due = time.monotonic()
            while not self._ended.is_set():
                events = poll_from_first(reader, 0.2)
                self._take(event.value for event in events if isinstance(event, Record))
                if time.monotonic() >= due:
                    due = time.monotonic() + STEP_MS / 1000
                    self._step()
        finally:
            reader.close()

    def _take(self, values: Iterable[bytes]) -> None:
        for value in values:
            try:
                status = unpack(value)
            except UnreadableStatus as error:
                log.warning("in topic %s: %s", STATUS_TOPIC, error)
                continue
            with self._lock:
                self._history.take(status)

    def _step(self) -> None:
        with self._lock:
            self._history.step(self._now_ms())
