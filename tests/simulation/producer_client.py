"""A transactional producer of librdkafka, request by request, over a bad network.

The product's `KafkaTransactions` runs on it unchanged. Messages are sent in the background: before,
between and after the requests with the offsets. While a request is under way, the process may die
or pause. If an answer does not come, the client logs a lost connection, and sends the request again
or gives up. The first copy may then arrive at any later time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from headrace.ingest.errors import KafkaUnreachable
from headrace.ingest.kafka import transactions
from headrace.ingest.kafka.client_log import ConnectionLog
from headrace.ingest.kafka.protocols import Committed, Record, Source
from tests.simulation.broker import Broker, Request
from tests.simulation.kafka import SimulatedReader
from tests.simulation.network import Crash

if TYPE_CHECKING:
    from tests.simulation.world import World

LARGEST_MESSAGE = 12 << 10
"""Bytes that the topic of examples takes; beside it the joiner's limit is as small."""
_LATE = 0.7
"""Probability that a request without an answer is still on its way."""
_SENT_AGAIN = 0.8
"""Probability that the client sends a request again, rather than give up."""
_MANY = frozenset({"add_partition", "produce"})
_OTHER_KINDS = 0.25
"""Share of the losses for kinds of which a transaction has many requests."""
_ARRIVES = 0.3
"""Probability that a late copy arrives before a request."""


class SimulatedProducer:
    """`confluent_kafka.Producer`, as far as transactions use it."""

    def __init__(self, config: Mapping[str, Any], *, broker: Broker, world: World) -> None:
        self._name: str = config["transactional.id"]
        self._log: ConnectionLog = config["logger"]
        self._broker, self._world = broker, world
        self._epoch = 0
        self._queue: list[tuple[Source, bytes, Callable[..., None] | None]] = []
        self._registered: set[Source] = set()
        self._sequences: dict[Source, int] = {}
        self._failure: KafkaError | None = None

    def __bool__(self) -> bool:
        return True

    def __len__(self) -> int:
        return len(self._queue)

    def init_transactions(self, timeout_s: float) -> None:
        """Take over from the producer before."""
        self._world.pause()
        if self._world.dice.random() < self._world.weather.lost_request / 2:
            raise KafkaException(_timed_out())
        self._epoch = self._broker.begin_epoch(self._name)

    def begin_transaction(self) -> None:
        """Begin; no request tells the broker."""
        self._queue, self._registered, self._failure = [], set(), None

    def produce(
        self,
        topic: str,
        value: bytes,
        key: bytes | None = None,
        partition: int = -1,
        on_delivery: Callable[..., None] | None = None,
    ) -> None:
        """Queue a message."""
        if len(value) > LARGEST_MESSAGE:
            raise KafkaException(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE))
        self._queue.append((Source(topic, partition), value, on_delivery))

    def poll(self, timeout_s: float) -> None:
        """Call back; nothing waits for it."""

    def flush(self, timeout_s: float) -> None:
        """Send all messages."""
        self._send(len(self._queue))

    def send_offsets_to_transaction(
        self, positions: Sequence[TopicPartition], member: Any, timeout_s: float
    ) -> None:
        """Send the offsets, behind some of the messages."""
        self._send(self._world.dice.randint(0, len(self._queue)))
        offsets = tuple(
            (Source(p.topic, p.partition), Committed(p.offset, p.metadata or "", p.leader_epoch))
            for p in positions
        )
        self._answered(Request("add_offsets", self._name, self._epoch))
        request = Request("commit_offsets", self._name, self._epoch, offsets=offsets, member=member)
        self._answered(request)

    def commit_transaction(self, timeout_s: float) -> None:
        """Send the rest of the messages, and commit."""
        self._send(len(self._queue))
        if self._failure is not None:
            raise KafkaException(self._failure)
        self._answered(Request("end_transaction", self._name, self._epoch, commit=True))

    def abort_transaction(self, timeout_s: float) -> None:
        """Abort."""
        self._queue.clear()
        self._answered(Request("end_transaction", self._name, self._epoch))

    def close(self) -> None:
        """Disconnect."""

    def _send(self, count: int) -> None:
        """Send `count` messages; those of a partition in order, one or more a request."""
        while count > 0 and self._queue and self._failure is None:
            target = self._world.dice.choice(self._queue)[0]
            mine = [each for each in self._queue if each[0] == target]
            mine = mine[: self._world.dice.choice((1, 1, min(count, len(mine))))]
            count -= len(mine)
            if target not in self._registered:
                self._registered.add(target)
                self._answered(Request("add_partition", self._name, self._epoch, target))
            sequence = self._sequences.get(target, 0)
            values = tuple(value for _, value, _ in mine)
            request = Request("produce", self._name, self._epoch, target, sequence, values)
            self._failure = self._call(request)
            if self._failure is None:
                self._sequences[target] = sequence + len(values)
            for each in mine:
                self._queue.remove(each)
                if each[2] is not None:
                    offset = self._world.topic.now.ends[target] - 1
                    each[2](self._failure, SimpleNamespace(offset=lambda at=offset: at))

    def _answered(self, request: Request) -> None:
        if (error := self._call(request)) is not None:
            raise KafkaException(error)

    def _call(self, request: Request) -> KafkaError | None:
        """Send a request until it is answered, or give up; return the error."""
        world, broker = self._world, self._broker
        while True:
            within = request.kind != "add_partition"
            if within and broker.late and world.dice.random() < _ARRIVES:
                broker.arrive()
            try:
                world.pause()
            except Crash:
                if world.dice.random() < _LATE:
                    broker.late.append(request)
                raise
            lost = world.weather.lost_request * (_OTHER_KINDS if request.kind in _MANY else 1.0)
            if world.dice.random() >= lost:
                code = broker.handle(request)
                if world.dice.random() >= world.weather.lost_reply / 2:
                    return self._error(code, request.kind) if code else None
                world.tally["answers to producers lost"] += 1
            elif world.dice.random() < _LATE:
                broker.late.append(request)
            if not broker.silent:
                self._log.log(logging.DEBUG, "%s: %s", "FAIL", "simulated: lost in state UP")
            if world.dice.random() >= _SENT_AGAIN:
                return _timed_out(
                    abort=world.dice.random() < 0.5 and request.kind != "end_transaction"
                )

    def _error(self, code: int, kind: str) -> KafkaError:
        """Return the error of the client, for which some answers are fatal."""
        fatal = code == KafkaError.INVALID_PRODUCER_EPOCH or (
            code == KafkaError.INVALID_TXN_STATE and kind == "commit_offsets"
        )
        return KafkaError(code, "simulated", fatal, False, not fatal)


def _timed_out(*, abort: bool = False) -> KafkaError:
    return KafkaError(KafkaError._TIMED_OUT, "simulated", False, not abort, abort)


class SimulatedOffsets:
    """The committed offsets of the joiners' group, and the membership of one joiner."""

    def __init__(self, name: str, reader: SimulatedReader, broker: Broker, world: World) -> None:
        self._name, self._reader, self._broker, self._world = name, reader, broker, world

    def committed(self, sources: Iterable[Source]) -> dict[Source, Committed]:
        """See Offsets."""
        sources = list(sources)
        self._world.pause()
        found = self._broker.committed(sources)
        if found is None:
            raise KafkaUnreachable("simulated: an open transaction holds the offsets")
        return found

    def group_metadata(self) -> object:
        """See Offsets."""
        return self._name, self._reader


@contextmanager
def simulated_client(broker: Broker, world: World) -> Iterator[None]:
    """Let the product's transactions use the simulated client, logs and clock."""

    def before(
        settings: object, ends: Mapping[Source, int], enough: Callable[[Any], bool]
    ) -> dict[Source, list[Any]]:
        world.pause()
        found = {target: broker.records(target, end) for target, end in ends.items()}
        return {target: _tail(records, enough) for target, records in found.items() if records}

    def all_records(settings: object, topic: str) -> Iterator[Any]:
        for records in world.topic.now.records.values():
            yield from records

    clock = SimpleNamespace(monotonic=lambda: world.now_ms() / 1000)
    with (
        patch.object(
            transactions, "Producer", partial(SimulatedProducer, broker=broker, world=world)
        ),
        patch.object(transactions, "records_before", before),
        patch.object(transactions, "read_all", all_records),
        patch.object(transactions, "time", clock),
    ):
        yield


def _tail(records: list[Record], enough: Callable[[Any], bool]) -> list[Record]:
    begins = [place for place, record in enumerate(records) if enough(record)]
    return records[begins[-1] if begins else 0 :]
