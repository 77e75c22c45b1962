"""What every process tells of itself: its figures, to the compacted topic `status`.

One message is one process at one moment, as JSON, under the key `process/instance`; the topic keeps
the last of each, so whoever reads it from its beginning knows who is there. The figures are those
that Prometheus would have read: nothing is measured twice. This is for the page of a server and for
whoever has no Prometheus; a process goes on without a word where Kafka takes no status.
"""

from __future__ import annotations

import logging
import math
import os
import socket
import threading
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from headrace.ingest.errors import StreamError
from headrace.ingest.kafka import BY_KEY, STATUS_TOPIC, KafkaWriter, Source
from headrace.ingest.runtime.clock import wall_ms

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client import CollectorRegistry

    from headrace.ingest.kafka import KafkaSettings, Writer

log = logging.getLogger(__name__)

EVERY_S = 2.0
_LOST_S = 5.0
_GOODBYE_S = 1.0
"""Nobody waits longer for a process that leaves."""


class MetricSample(msgspec.Struct, frozen=True, array_like=True):
    """One sample of Prometheus: its name, what it is of, and its value."""

    name: str
    labels: dict[str, str]
    value: float


class ProcessStatus(msgspec.Struct, frozen=True):
    """A process at one moment."""

    process: str
    """What it is: joiner, learner, keeper, server, ..."""
    instance: str
    """Which of them: a host and a process id, or whatever name it was given."""
    time_ms: int
    figures: list[MetricSample]
    ended: bool = False
    """It was told to stop, and says goodbye."""


class UnreadableStatus(ValueError):
    """A message of the status topic is none of ours."""


def pack(status: ProcessStatus) -> bytes:
    """Return the message."""
    return msgspec.json.encode(status)


def unpack(blob: bytes) -> ProcessStatus:
    """Return what `pack` was given. Raises UnreadableStatus."""
    try:
        return msgspec.json.decode(blob, type=ProcessStatus)
    except msgspec.MsgspecError as error:
        raise UnreadableStatus(f"expected the status of a process, found {error}") from error


def instance_name() -> str:
    """Return what tells this process from others of its kind: its host and its number there."""
    return f"{socket.gethostname()}:{os.getpid()}"


def samples_of(registry: CollectorRegistry) -> list[MetricSample]:
    """Return every sample of headrace's own that a registry has; times of creation are none."""
    return [
        MetricSample(sample.name, dict(sample.labels), float(sample.value))
        for metric in registry.collect()
        if metric.name.startswith("headrace_")
        for sample in metric.samples
        if not sample.name.endswith("_created") and math.isfinite(sample.value)
    ]


def publish_once(
    writer: Writer,
    process: str,
    instance: str,
    now_ms: int,
    registry: CollectorRegistry,
    *,
    ended: bool = False,
) -> None:
    """Write one message. Raises StreamError's kinds."""
    status = ProcessStatus(process, instance, now_ms, samples_of(registry), ended)
    key = f"{process}/{instance}".encode()
    writer.send(Source(STATUS_TOPIC, BY_KEY), pack(status), key)
    writer.flush()


@contextmanager
def publish_status(
    kafka: KafkaSettings | None,
    process: str,
    instance: str,
    registry: CollectorRegistry,
    every_s: float = EVERY_S,
) -> Iterator[None]:
    """Tell how this process is, now and then, from a thread of its own; without Kafka, nothing."""
    if kafka is None:
        yield
        return
    done = threading.Event()
    impatient = replace(kafka, lost_timeout_s=_LOST_S)

    def go_on() -> None:
        writer: KafkaWriter | None = None
        while True:
            last = done.wait(every_s)
            try:
                writer = writer or KafkaWriter(impatient)
                publish_once(writer, process, instance, wall_ms(), registry, ended=last)
            except StreamError as error:
                log.debug("no status was written: %s", error)
                _drop(writer)
                writer = None
            if last:
                break
        _drop(writer)

    thread = threading.Thread(target=go_on, name="status", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(_GOODBYE_S)


def _drop(writer: KafkaWriter | None) -> None:
    if writer is not None:
        try:
            writer.close()
        except StreamError as error:
            log.debug("the last status was not written: %s", error)
