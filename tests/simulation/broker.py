"""Kafka's side of transactions: coordinator, logs with open transactions, offsets, late requests.

A broker handles one request at a time. It refuses requests of an earlier epoch of their producer,
produce requests for partitions that are not in the ongoing transaction, repeated sequence numbers,
and offsets of a stale member. It cannot tell a late copy of any other request from a new one: such
a copy takes effect in the transaction that is ongoing when it arrives (protocol version 1).

After a leader moved, a broker may answer from an older state for a while.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from confluent_kafka import KafkaError

from headrace.ingest.dead_letters.letter import Letter
from headrace.ingest.dead_letters.letter import unpack as unpack_letter
from headrace.ingest.errors import KafkaUnreachable
from headrace.ingest.kafka.protocols import Committed, Record, Source
from tests.simulation.batches import batch_of
from tests.simulation.kafka import Group, SimulatedReader
from tests.simulation.topic import TOPIC

if TYPE_CHECKING:
    from tests.simulation.world import World

REMEMBERED = 4
"""Commits that a broker with an old state may not know."""


class Request(NamedTuple):
    """One request of a producer."""

    kind: str
    """One of add_partition, produce, add_offsets, commit_offsets, end_transaction."""
    producer: str
    epoch: int
    target: Source | None = None
    sequence: int = 0
    """Of the first message of `values` in its partition and epoch."""
    values: tuple[bytes, ...] = ()
    offsets: tuple[tuple[Source, Committed], ...] = ()
    member: tuple[str, SimulatedReader] | None = None
    commit: bool = False


@dataclass
class Coordinator:
    """The state of one transactional id."""

    epoch: int = 0
    ongoing: bool = False
    since_ms: int = 0
    added: set[Source] = field(default_factory=set)
    with_offsets: bool = False
    pending: dict[Source, Committed] = field(default_factory=dict)
    written: list[tuple[Source, Record | bytes]] = field(default_factory=list)
    """Open entries: records of examples, and dead letters."""
    sequences: dict[Source, int] = field(default_factory=lambda: defaultdict(int))
    """The next sequence number of each partition."""
    ended: bool | None = None
    """Whether the last transaction was committed."""


class Broker:
    """All brokers of a world, as one."""

    def __init__(self, world: World, group: Group, timeout_ms: int) -> None:
        """timeout_ms: after which a transaction is aborted."""
        self._world, self._group, self._timeout_ms = world, group, timeout_ms
        self._producers: dict[str, Coordinator] = defaultdict(Coordinator)
        self.offsets: dict[Source, Committed] = {}
        self.past: deque[dict[Source, Committed]] = deque(maxlen=REMEMBERED)
        """Committed offsets before each of the last commits."""
        self.reached: dict[Source, int] = {}
        """The greatest offsets ever committed."""
        self.late: list[Request] = []
        """Copies of requests on their way."""
        self.disturbed = False
        """Whether a late copy or an old state took effect: dead letters may be written again."""
        self.letters: list[tuple[str, int, int]] = []
        self.silent = world.plan.seed % 4 != 0
        """Whether clients log no lost connections: then joiners must find by themselves what a late
        copy did to examples, and dead letters may be lost."""

    def begin_epoch(self, producer: str) -> int:
        """Fence the producer before, abort its transaction, and return the new epoch."""
        found = self._producers[producer]
        if found.ongoing:
            self._end(found, commit=False)
        found.epoch += 1
        found.sequences.clear()
        found.ended = None
        return found.epoch

    def handle(self, request: Request) -> int:
        """Handle a request; return the error code; 0: no error."""
        self.end_overdue()
        found = self._producers[request.producer]
        if request.epoch != found.epoch:
            return KafkaError.INVALID_PRODUCER_EPOCH
        handler = getattr(self, f"_{request.kind}")
        code: int = handler(found, request)
        return code

    def arrive(self) -> None:
        """Handle a late copy of a request."""
        ends = [each for each in self.late if each.kind == "end_transaction"]  # do most harm
        request = self._world.dice.choice(ends or self.late)
        self.late.remove(request)
        within = self._producers[request.producer].ongoing
        code = self.handle(request)
        self.disturbed |= not code
        where = "within a transaction" if within else "between transactions"
        taken = "refused" if code else "taken"
        self._world.tally[f"late {request.kind} requests {taken} {where}"] += 1

    def committed(self, sources: Iterable[Source]) -> dict[Source, Committed] | None:
        """Return the committed offsets; None while a transaction still holds some of them."""
        self.end_overdue()
        wanted = set(sources)
        if any(each.ongoing and wanted & each.pending.keys() for each in self._producers.values()):
            return None
        state = self.offsets
        if self.past and self._world.dice.random() < self._world.plan.old_states:
            self._world.tally["committed offsets read from an old state"] += 1
            self.disturbed = True
            state = self._world.dice.choice(self.past)
        return {source: state[source] for source in wanted if source in state}

    def records(self, target: Source, end: int) -> list[Record]:
        """Return the committed records before an offset, as a broker has them that has it.

        Raises KafkaUnreachable if a transaction is open there.
        """
        self.end_overdue()
        life = self._world.topic.now
        if any(offset < end for offset in life.open[target]):
            raise KafkaUnreachable(f"simulated: a transaction of {target} is open")
        return [record for record in life.records[target] if record.offset < end]

    def end_overdue(self) -> None:
        """Abort transactions that are open for too long, also those that a late request opened."""
        now_ms = self._world.now_ms()
        for each in self._producers.values():
            if each.ongoing and now_ms - each.since_ms > self._timeout_ms:
                self._world.tally["transactions that Kafka ended"] += 1
                self._end(each, commit=False)
                each.epoch += 1

    def _open(self, found: Coordinator) -> None:
        if not found.ongoing:
            found.ongoing, found.since_ms = True, self._world.now_ms()

    def _add_partition(self, found: Coordinator, request: Request) -> int:
        self._open(found)
        assert request.target is not None
        found.added.add(request.target)
        return 0

    def _produce(self, found: Coordinator, request: Request) -> int:
        target = request.target
        assert target is not None
        if request.sequence < found.sequences[target]:
            return 0  # written before
        if request.sequence > found.sequences[target]:
            return KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER
        if not found.ongoing or target not in found.added:
            return KafkaError.INVALID_TXN_STATE
        for value in request.values:
            found.sequences[target] += 1
            if target.topic == TOPIC:
                record = self._world.topic.write(target, value, self._world.wall_ms())
                found.written.append((target, record))
            else:
                found.written.append((target, value))
        return 0

    def _add_offsets(self, found: Coordinator, request: Request) -> int:
        self._open(found)
        found.with_offsets = True
        return 0

    def _commit_offsets(self, found: Coordinator, request: Request) -> int:
        if not found.ongoing or not found.with_offsets:
            return KafkaError.INVALID_TXN_STATE
        assert request.member is not None
        if not self._group.in_force(*request.member, [source for source, _ in request.offsets]):
            self._world.tally["offsets of zombies refused"] += 1
            return KafkaError.ILLEGAL_GENERATION
        found.pending.update(request.offsets)
        return 0

    def _end_transaction(self, found: Coordinator, request: Request) -> int:
        if not found.ongoing:
            return 0 if found.ended == request.commit else KafkaError.INVALID_TXN_STATE
        self._end(found, commit=request.commit)
        return 0

    def _end(self, found: Coordinator, *, commit: bool) -> None:
        topic = self._world.topic
        for target, entry in found.written:
            if isinstance(entry, bytes):
                if commit:
                    letter = unpack_letter(entry)
                    assert isinstance(letter, Letter)
                    self.letters.append((letter.topic, letter.partition, letter.offset))
            else:
                wait_s = self._world.plan.wait_s
                topic.end(target, entry, batch_of(entry.value, wait_s) if commit else None)
        for target in found.added:
            if target.topic == TOPIC:
                topic.now.ends[target] += 1  # the marker
        if commit:
            self._world.tally["transactions of joiners"] += 1
            self.past.append(dict(self.offsets))
            self.offsets.update(found.pending)
            for source, at in found.pending.items():
                self.reached[source] = max(self.reached.get(source, 0), at.offset)
        else:
            self._world.tally["transactions of joiners aborted"] += 1
        found.ongoing, found.with_offsets, found.ended = False, False, commit
        found.added, found.pending, found.written = set(), {}, []
