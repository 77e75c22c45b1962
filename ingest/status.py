"""Publishes the status of a process: its metrics, to the compacted topic `status`.

One message is one process at one moment, as JSON, under the key `process/instance`. The topic keeps
the last message of each key, so a reader from its beginning finds every process. The figures are
the samples that Prometheus would scrape; nothing is measured twice. The status serves the page of a
prediction server, and operators without Prometheus. A process goes on if Kafka refuses its status.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from headrace.ingest.errors import StreamError
from headrace.ingest.kafka.producer import BY_KEY, KafkaWriter
from headrace.ingest.kafka.protocols import Source
from headrace.ingest.kafka.settings import KafkaSettings
from headrace.ingest.kafka.topics import STATUS_TOPIC
from headrace.runtime.clock import wall_ms
from headrace.runtime.process import StatusPublisher, instance_name
from headrace.runtime.undecodable import UNDECODABLE

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

log = logging.getLogger(__name__)

EVERY_S = 2.0
_LOST_S = 5.0
_GOODBYE_S = 1.0
"""The longest time that a stopping process waits for its last status."""


class MetricSample(msgspec.Struct, frozen=True, array_like=True):
    """One Prometheus sample: its name, labels and value."""

    name: str
    labels: dict[str, str]
    value: float


class ProcessStatus(msgspec.Struct, frozen=True):
    """A process at one moment."""

    process: str
    """The role: joiner, learner, keeper, server, ..."""
    instance: str
    """Which process of this role: host and process id, or a configured name."""
    time_ms: int
    figures: list[MetricSample]
    ended: bool = False
    """Whether this is the last status of a process that was stopped."""


class UnreadableStatus(ValueError):
    """A message of the status topic is not the status of a process."""


def pack(status: ProcessStatus) -> bytes:
    """Return the message of a status."""
    return msgspec.json.encode(status)


def unpack(blob: bytes) -> ProcessStatus:
    """Return the status of `pack`. Raises UnreadableStatus."""
    try:
        return msgspec.json.decode(blob, type=ProcessStatus)
    except UNDECODABLE as error:
        raise UnreadableStatus(f"expected the status of a process, got {error}") from error


def samples_of(registry: CollectorRegistry) -> list[MetricSample]:
    """Return all samples of headrace's own metrics in a registry, without creation times."""
    return [
        MetricSample(sample.name, dict(sample.labels), float(sample.value))
        for metric in registry.collect()
        if metric.name.startswith("headrace_")
        for sample in metric.samples
        if not sample.name.endswith("_created") and math.isfinite(sample.value)
    ]


def status_in(kafka: KafkaSettings | None) -> StatusPublisher | None:
    """Return what publishes the status of a process in Kafka; None without Kafka."""
    return None if kafka is None else partial(publish_status, kafka)


@contextmanager
def publish_status(
    kafka: KafkaSettings, process: str, registry: CollectorRegistry
) -> Iterator[None]:
    """Publish the status every `EVERY_S` seconds from a thread, until the block ends."""
    done = threading.Event()
    settings, instance = replace(kafka, lost_timeout_s=_LOST_S), instance_name()
    target, key = Source(STATUS_TOPIC, BY_KEY), f"{process}/{instance}".encode()

    def publish_repeatedly() -> None:
        writer: KafkaWriter | None = None
        last = False
        while not last:
            last = done.wait(EVERY_S)
            try:
                writer = writer or KafkaWriter(settings)
                status = ProcessStatus(process, instance, wall_ms(), samples_of(registry), last)
                writer.send(target, pack(status), key)
                writer.flush()
            except StreamError as error:
                log.debug("status not written: %s", error)
                _close(writer)
                writer = None
        _close(writer)

    thread = threading.Thread(target=publish_repeatedly, name="status", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(_GOODBYE_S)


def _close(writer: KafkaWriter | None) -> None:
    if writer is not None:
        try:
            writer.close()
        except StreamError as error:
            log.debug("last status not written: %s", error)
