"""Drives one promotion: reads figures, decides, and writes the next step, until it ends.

The decisions are pure (`promotion_steps`). The controller keeps nothing beside the record in the
topic: it may be killed at any line and started again, here or elsewhere. A second controller of the
same model fences the first through its transactional id, and the first one ends.

While no controller runs, traffic stays at its step. A supervisor should restart it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from typing import NamedTuple, Protocol

from headrace.ingest.errors import KafkaUnreachable, MissingTopic, TransactionAborted
from headrace.ingest.kafka.protocols import Record, Source
from headrace.ingest.kafka.reading.bounded_reader import read_all
from headrace.ingest.kafka.reading.consumer import KafkaReader, poll_from_first
from headrace.ingest.kafka.reading.offset_store import KafkaOffsets
from headrace.ingest.kafka.settings import KafkaSettings
from headrace.ingest.kafka.topics import STATUS_TOPIC, ensure_topics
from headrace.ingest.kafka.transactions import KafkaTransactions, Outgoing
from headrace.ingest.status import UnreadableStatus, unpack
from headrace.runtime.clock import wall_ms
from headrace.runtime.undecodable import UNDECODABLE
from headrace.serving.deployments.deployment_records import Deployments
from headrace.serving.deployments.topic_follower import DEPLOYMENTS_TOPIC, deployments_spec
from headrace.serving.errors import ServingError
from headrace.serving.evaluation.windows import read_minutes
from headrace.serving.promotion.promotion_checks import ServedFigures
from headrace.serving.promotion.promotion_state import (
    Promotion,
    PromotionStage,
    decoded_promotion,
    deployments_of,
    promotion_key,
)
from headrace.serving.promotion.promotion_steps import PromotionFigures, next_promotion, waits_for
from headrace.serving.promotion.served_loss import canary_began_ms, served_loss
from headrace.serving.promotion.status_figures import StatusFigures

log = logging.getLogger(__name__)

_LOOK_S = 2.0
_LOSS_EVERY_S = 15.0
"""Interval of reading the topic of evaluation, whose minutes settle once a minute. Shorter windows
are read as often as they settle."""
_ONLY = Source(DEPLOYMENTS_TOPIC, 0)


class DeployedState(NamedTuple):
    """The state of the topic that matters to one promotion."""

    deployments: Deployments
    promotion: Promotion | None


class PromotionPorts(Protocol):
    """Everything that a controller reads and writes."""

    def deployed(self) -> DeployedState:
        """Return the state of the topic. Raises KafkaUnreachable."""

    def write(self, promotion: Promotion) -> None:
        """Write a state and its deployments in one transaction. Raises StreamError."""

    def figures(self, promotion: Promotion, target: str, now_ms: int) -> PromotionFigures:
        """Return the figures of this moment. Raises KafkaUnreachable."""


def drive_promotion(
    ports: PromotionPorts,
    stop: threading.Event,
    shown: Callable[[Promotion, str], None],
    now_ms: Callable[[], int] = wall_ms,
    look_s: float = _LOOK_S,
) -> Promotion:
    """Drive the promotion of the topic until it ends or `stop` is set; return its state.

    shown: called after each look, with what the promotion waits for. Raises Fenced if another
    controller took over, ServingError, and the errors of Kafka except its outages.
    """
    while True:
        try:
            deployments, state = ports.deployed()
            if state is None:
                raise ServingError("expected a promotion in the topic deployments, got none")
            if state.ended or stop.is_set():
                return state
            target = deployments.aliases.get(state.rules.alias, "")
            figures = ports.figures(state, target, now_ms())
            after = next_promotion(state, figures, now_ms())
            if after is not state:
                ports.write(after)
            shown(after, waits_for(after, figures, now_ms()))
        except (KafkaUnreachable, TransactionAborted) as error:
            # unknown whether it was written: the next look reads the topic
            log.warning("the promotion waits for Kafka: %s", error)
        stop.wait(look_s)


class KafkaPromotionPorts:
    """The ports of one promotion. A context manager."""

    def __init__(
        self, kafka: KafkaSettings, model: str, control: str, rows_ready: Callable[[], bool]
    ) -> None:
        """Connect, and fence an earlier controller. Raises StreamError.

        rows_ready: whether the parameter server has the model.
        """
        self._kafka, self._model, self._rows_ready = kafka, model, rows_ready
        self._figures = StatusFigures(model, control)
        self._began_ms = wall_ms()
        self._loss, self._loss_due_s = ServedFigures(), 0.0
        ensure_topics(kafka, [deployments_spec()])
        self._stack = ExitStack()
        with ExitStack() as stack:
            group = f"headrace.promotion.{model}"
            offsets = stack.enter_context(closing(KafkaOffsets(kafka, group)))
            transactions = KafkaTransactions(kafka, group, offsets)
            self._transactions = stack.enter_context(closing(transactions))
            self._statuses = KafkaReader(kafka, None, [STATUS_TOPIC])
            stack.enter_context(closing(self._statuses))
            self._stack = stack.pop_all()

    def __enter__(self) -> KafkaPromotionPorts:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def deployed(self) -> DeployedState:
        """Return the state of the topic."""
        return read_promotion_state(self._kafka, self._model)

    def write(self, promotion: Promotion) -> None:
        """Write a state and its deployments in one transaction."""
        messages = [Outgoing(_ONLY, value, key) for key, value in deployments_of(promotion)]
        self._transactions.write(messages, {})

    def figures(self, promotion: Promotion, target: str, now_ms: int) -> PromotionFigures:
        """Return the figures of this moment."""
        self._read_statuses()
        figures = self._figures
        servers, ready = figures.servers(now_ms)
        newest_ms = max(figures.newest_ms(), self._began_ms)
        return PromotionFigures(
            target=target,
            age_ms=max(0, now_ms - newest_ms),
            rows_ready=promotion.stage is not PromotionStage.PREPARING or self._rows_ready(),
            behind_s=figures.behind_s(now_ms),
            servers=servers,
            servers_ready=ready,
            served=self._served_loss(promotion)._replace(
                level=figures.level(now_ms),
                p99_ms=figures.p99_ms(now_ms),
                freshness_s=figures.freshness_s(now_ms),
                quarantined=figures.quarantined(now_ms),
            ),
            not_following=figures.not_following(now_ms),
        )

    def _read_statuses(self) -> None:
        for event in poll_from_first(self._statuses, 0.0):
            if isinstance(event, Record) and event.value:
                try:
                    self._figures.take(unpack(event.value))
                except UnreadableStatus as error:
                    log.warning("in topic %s: %s", STATUS_TOPIC, error)

    def _served_loss(self, promotion: Promotion) -> ServedFigures:
        window_s = promotion.rules.window_s
        if canary_began_ms(promotion) is None or time.monotonic() < self._loss_due_s:
            return self._loss
        self._loss_due_s = time.monotonic() + min(_LOSS_EVERY_S, window_s)
        try:
            minutes = list(read_minutes(self._kafka, promotion.rules.alias, window_s=window_s))
        except MissingTopic:  # no evaluation runs yet
            return self._loss
        self._loss = served_loss(minutes, promotion)
        return self._loss


def read_promotion_state(kafka: KafkaSettings, model: str) -> DeployedState:
    """Return the state of the topic for one model. Raises KafkaUnreachable, ServingError."""
    deployments, value, key = Deployments(), b"", promotion_key(model)
    try:
        for each in read_all(kafka, DEPLOYMENTS_TOPIC):
            deployments = deployments.after(each.key, each.value)
            if each.key == key:
                value = each.value
        return DeployedState(deployments, decoded_promotion(value) if value else None)
    except MissingTopic:
        return DeployedState(deployments, None)
    except UNDECODABLE as error:
        raise ServingError(
            f"topic {DEPLOYMENTS_TOPIC}, {key.decode()}: expected a promotion of this version, "
            f"got: {error}"
        ) from error
