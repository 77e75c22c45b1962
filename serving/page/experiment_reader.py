"""Reads the topics `experiments` and `deployments` into the experiments and promotions of the page.

A thread reads both topics from their start, from the first request of a page on: a server without
readers pays nothing. A topic that does not exist yet is looked for again.
"""

import logging
import threading
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from headrace.ingest.errors import StreamError
from headrace.ingest.kafka.protocols import Reader, Record
from headrace.ingest.kafka.reading.consumer import KafkaReader, poll_from_first
from headrace.ingest.kafka.settings import KafkaSettings
from headrace.ingest.kafka.topics import partition_counts
from headrace.learner.experiments.history import ArmRecord, arm_state
from headrace.learner.experiments.published_history import EXPERIMENTS_TOPIC, histories_of
from headrace.runtime.background_thread import BackgroundThread
from headrace.runtime.undecodable import UNDECODABLE
from headrace.serving.deployments.topic_follower import DEPLOYMENTS_TOPIC
from headrace.serving.promotion.promotion_state import Promotion, decoded_promotion

log = logging.getLogger(__name__)

_TOPICS = (EXPERIMENTS_TOPIC, DEPLOYMENTS_TOPIC)
_AGAIN_S = 5.0
_POLL_S = 0.5
MOST_POINTS = 200
"""Of a curve: a chart of a phone or a laptop shows no more."""
MOST_CURVES = 6
"""The best arms of an experiment have curves; all of them are in the table."""
_LEARNING = ("begun", "scored", "rung", "better")
_PROMOTION = b"promotion/"


class ExperimentReader(BackgroundThread):
    """Keeps experiments and promotions up to date, in a thread that the first answer starts."""

    def __init__(self, kafka: KafkaSettings) -> None:
        super().__init__(self._run, "experiments of the page")
        self._kafka, self._lock = kafka, threading.Lock()
        self._records: dict[tuple[str, bytes], Record] = {}
        self._answer: dict[str, Any] | None = None

    def answer(self) -> dict[str, Any]:
        """Return the data of the page. The first call starts to read."""
        with self._lock:
            if self._thread.ident is None:
                self.start()
            if self._answer is None:
                self._answer = shown_experiments(self._records.values())
            return self._answer

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                there = [name for name in _TOPICS if name in partition_counts(self._kafka, _TOPICS)]
                if there:
                    self._follow(there)
                    continue
            except StreamError as error:
                log.debug("the page has no experiments: %s", error)
            except Exception:
                log.exception("the page reads the topics again")
            self._ended.wait(_AGAIN_S)

    def _follow(self, topics: Sequence[str]) -> None:
        """Read until the end, or until a topic that was missing exists."""
        reader: Reader = KafkaReader(self._kafka, None, topics)
        missing, looks = set(_TOPICS) - set(topics), 0
        try:
            while not self._ended.is_set():
                self._take(reader)
                looks += 1
                due = missing and looks % int(_AGAIN_S / _POLL_S) == 0
                if due and missing & partition_counts(self._kafka, tuple(missing)).keys():
                    return
        finally:
            reader.close()

    def _take(self, reader: Reader) -> None:
        for event in poll_from_first(reader, _POLL_S):
            if isinstance(event, Record):
                key = event.source.topic, event.key or b""
                with self._lock:
                    self._records.pop(key, None)  # the order is that of the newest records
                    self._records[key] = event
                    self._answer = None


def shown_experiments(records: Iterable[Record]) -> dict[str, Any]:
    """Return the experiments and promotions of these records, each the newest of its key."""
    histories, promotions = [], []
    for record in records:
        if record.source.topic == EXPERIMENTS_TOPIC:
            histories.append(record)
        elif (record.key or b"").startswith(_PROMOTION) and record.value:
            try:
                promotions.append(decoded_promotion(record.value))
            except UNDECODABLE as error:
                log.debug("a promotion of another version: %s", error)
    return {
        "experiments": [
            _experiment(name, history.records) for name, history in histories_of(histories).items()
        ],
        "promotions": [_promotion(each) for each in promotions],
    }


def _experiment(name: str, history: Sequence[ArmRecord]) -> dict[str, Any]:
    arms: dict[str, list[ArmRecord]] = {}
    for record in history:
        if record.kind != "log" and record.arm:
            arms.setdefault(record.name, []).append(record)
    told = sorted((_arm(each) for each in arms.values()), key=_order)
    for arm in told[:MOST_CURVES]:
        arm["curve"] = _curve(arms[arm["name"]])
    return {"name": name, "arms": told}


def _arm(records: Sequence[ArmRecord]) -> dict[str, Any]:
    last = records[-1]
    return {
        "name": last.name,
        "state": "learning" if last.kind in _LEARNING else last.kind,
        "better": any(each.kind == "better" for each in records),
        "examples": last.examples,
        "difference": last.difference,
        "low": last.low,
        "high": last.high,
        "reason": arm_state(records).reason,
        "settings": records[0].settings,
        "curve": [],
    }


def _order(arm: dict[str, Any]) -> tuple[bool, int, float]:
    difference = arm["difference"]
    known = float("inf") if difference is None else difference
    return arm["state"] != "learning", -arm["examples"], known


def _curve(records: Sequence[ArmRecord]) -> list[tuple[int, float, float | None, float | None]]:
    """Return event time, difference and bounds of an arm, thinned out evenly."""
    points = [
        (each.event_ms, each.difference, each.low, each.high)
        for each in records
        if each.kind == "scored" and each.difference is not None
    ]
    every = -(-len(points) // MOST_POINTS) or 1
    return points[::-1][::every][::-1]  # the newest point stays


def _promotion(state: Promotion) -> dict[str, Any]:
    return {
        "model": state.model,
        "control": state.control,
        "alias": state.rules.alias,
        "stage": state.stage,
        "share": state.share,
        "decisions": [msgspec.structs.asdict(each) for each in state.decisions],
    }
