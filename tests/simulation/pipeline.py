"""The path of an event to the topic of examples: producer, event topics, joiners, transactions.

In a world with joiners, the learners read what the joiners commit. A transaction follows Kafka's
rules: it is written as a whole or not at all, a member commits only partitions that it owns, and a
message above the topic's limit is refused. Kafka may forget the committed offsets. Their requests
have no sequence numbers, so it may also commit those of an earlier transaction with a later one.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from headrace.ingest.dead_letters import Letter
from headrace.ingest.dead_letters import unpack as unpack_letter
from headrace.ingest.errors import (
    BadCheckpoint,
    KafkaUnreachable,
    OffsetGone,
    TransactionAborted,
    WriteRefused,
)
from headrace.ingest.examples import Cut
from headrace.ingest.joiner.loop import Joiner, JoinerPacing
from headrace.ingest.kafka import EventTopics
from headrace.ingest.kafka.fakes import tail_of
from headrace.ingest.kafka.retry import AbortBackoff, retry_for
from headrace.ingest.kafka.transactional_ports import TransactionalPorts
from tests.simulation.batches import FIELDS, batch_of
from tests.simulation.bounded import projected
from tests.simulation.events import EventLogs, Producer
from tests.simulation.kafka import Group
from tests.simulation.ledger import Broken, differences
from tests.simulation.processes import Place, Process, Refused
from tests.simulation.topic import TOPIC

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from headrace.ingest.kafka.protocols import Committed, Source
    from headrace.ingest.kafka.transactions import Outgoing
    from tests.simulation.batches import Total

_LARGEST_MESSAGE = 12 << 10
"""Bytes that the topic of examples takes; beside it the joiner's limit is as small."""
_DELAYED = 0.7
"""Probability that the request with the offsets of an aborted transaction is still on its way."""
_ARRIVES = 0.5
"""Probability that such a request arrives during a later transaction."""
_PACE = JoinerPacing(
    lazy_commit_ms=100,
    backlog_commit_ms=50,
    turn_events=16,
    step_events=128,
    ahead_limit=64,
    cut=Cut(most=64, least=4, merged=32, most_bytes=_LARGEST_MESSAGE // 4),
)


class Pipeline:
    """All that is in front of the topic of examples."""

    def __init__(self, world: Place) -> None:
        self._world = world
        self.topics = EventLogs(world.plan.partitions)
        self.producer = Producer(self.topics, world.plan, world.dice, world.tally)
        self.group = Group(self.topics, world.dice, world.tally)
        self.offsets: dict[Source, Committed] = {}
        """Committed offsets of joiners, until Kafka forgets them."""
        self.joined: dict[Source, int] = {}
        """Offsets of the last transactions, without the delayed ones."""
        self._reached: dict[Source, int] = {}
        """The greatest offsets ever committed."""
        self.delay_dice = random.Random(world.plan.seed ^ 0x0FF5E7)
        """Decides which requests with offsets are delayed; no other dice depend on it."""
        self.delayed = 0
        """Times that delayed offsets were committed with a later transaction."""
        self.forgotten = 0
        """Times that Kafka forgot them."""
        self.cut_beyond_positions = False
        """Whether a log lost events that were joined."""
        self.letters: list[tuple[str, int, int]] = []
        names = [f"joiner {i}" for i in range(world.plan.joiners)]
        self.joiners = [JoinerProcess(name, self, world) for name in names]

    def forget_offsets(self) -> None:
        """Let Kafka forget the offsets of a group that was empty for a long time."""
        if self.offsets and not any(joiner.running for joiner in self.joiners):
            self._world.tally["committed offsets forgotten"] += 1
            self.forgotten += 1
            for joiner in self.joiners:
                joiner.kill()
            self.offsets.clear()
            self.joined.clear()

    def cut_a_log(self) -> None:
        """Let a log of events lose its end with the power of all joiners, and grow beyond it."""
        world, life = self._world, self.topics.now
        source = world.dice.choice(list(life.records))
        records = len(life.records[source])
        if not records or any(joiner.running for joiner in self.joiners):
            return
        for joiner in self.joiners:
            joiner.kill()
        before = life.cut(source, world.dice.randint(1, min(3, records)))
        end = life.ends[source]
        self.producer.lose(source, end, self.letters)
        committed = self.offsets.get(source)
        beyond = max(self._reached.get(source, 0), committed.offset if committed else 0) > end
        world.tally["logs cut that were joined" if beyond else "logs of events cut"] += 1
        self.cut_beyond_positions |= beyond
        while life.ends[source] <= before:
            self.producer.send(source.partition, world.wall_ms())

    def join_up_to(self, offsets: Mapping[Source, int]) -> None:
        """Note where a transaction ends."""
        self.joined.update(offsets)
        for source, offset in offsets.items():
            self._reached[source] = max(self._reached.get(source, 0), offset)

    def unjoined(self) -> str:
        """Say which events are not joined; empty if all are."""
        for source, end in self.topics.now.ends.items():
            committed = self.offsets.get(source)
            at = max(self.joined.get(source, 0), committed.offset if committed else 0)
            if at != end:
                return f"{source} is joined up to {at} of {end}"
        return ""

    def verify(self, rows: Mapping[int, Total]) -> None:
        """Raise Broken unless each event counts once in the rows, or is one dead letter."""
        if wrong := differences(rows, projected(self.producer.truth(), self._world.plan)):
            raise Broken(f"rows are not what the producer sent: {wrong}")
        found, sent = sorted(self.letters), sorted(self.producer.refused)
        if self.forgotten or self.delayed:  # what follows the last examples is joined again
            found = sorted(set(found))
        if found != sent:
            raise Broken(f"dead letters of events: expected {sent}, got {found}")


class SimulatedTransactions:
    """The transactions of one joiner."""

    def __init__(self, pipeline: Pipeline, name: str, world: Place) -> None:
        self._pipeline, self._name, self._world = pipeline, name, world
        self._delayed: list[Mapping[Source, Committed]] = []
        """Requests with offsets of aborted transactions, on their way."""

    def committed(self, sources: Iterable[Source]) -> dict[Source, Committed]:
        """See Transactions."""
        self._world.pause()
        offsets = self._pipeline.offsets
        return {source: offsets[source] for source in sources if source in offsets}

    def tail(
        self, targets: Iterable[Source], enough: Callable[[bytes], bool]
    ) -> dict[Source, list[bytes]]:
        """See Transactions."""
        values = {target: list(self.history(target)) for target in targets}
        return {target: tail_of(held, enough) for target, held in values.items() if held}

    def history(self, target: Source) -> Iterator[bytes]:
        """See Transactions."""
        return (record.value for record in self._world.topic.now.records[target])

    def write(self, messages: Sequence[Outgoing], offsets: Mapping[Source, Committed]) -> None:
        """See Transactions."""
        world, dice = self._world, self._world.dice
        world.pause()
        largest = max((len(message.value) for message in messages), default=0)
        if largest > _LARGEST_MESSAGE:
            raise WriteRefused(f"simulated: expected at most {_LARGEST_MESSAGE}, got {largest}")
        if not self._pipeline.group.in_force(self._name, offsets):
            world.tally["transactions of zombies refused"] += 1
            self._leave_gaps(messages)
            raise TransactionAborted("simulated: the member is of an earlier generation")
        if dice.random() < world.weather.lost_request:
            world.tally["transactions of joiners aborted"] += 1
            if self._pipeline.delay_dice.random() < _DELAYED:
                self._delayed.append(offsets)
            self._leave_gaps(messages)
            raise dice.choice((TransactionAborted, KafkaUnreachable))("simulated: aborted")
        self._commit(messages, offsets)
        world.pause()
        if dice.random() < world.weather.lost_reply:
            world.tally["commits that joiners did not hear of"] += 1
            raise KafkaUnreachable("simulated: no answer to a commit")

    def close(self) -> None:
        """See Transactions."""

    def _commit(self, messages: Sequence[Outgoing], offsets: Mapping[Source, Committed]) -> None:
        topic, now_ms = self._world.topic, self._world.wall_ms()
        self._world.tally["transactions of joiners"] += 1
        for target, value, _ in messages:
            if target.topic == TOPIC:
                topic.append(target, batch_of(value), now_ms, aborted=0, marker=False)
                continue
            letter = unpack_letter(value)
            assert isinstance(letter, Letter)
            self._pipeline.letters.append((letter.topic, letter.partition, letter.offset))
        for target in {target for target, *_ in messages if target.topic == TOPIC}:
            topic.now.ends[target] += 1  # the marker
        self._pipeline.offsets.update(offsets)
        self._pipeline.join_up_to({source: at.offset for source, at in offsets.items()})
        self._receive_delayed()

    def _receive_delayed(self) -> None:
        """Let an older request with offsets arrive within the present transaction."""
        pipeline = self._pipeline
        if not self._delayed or pipeline.delay_dice.random() >= _ARRIVES:
            return
        late = self._delayed.pop(pipeline.delay_dice.randrange(len(self._delayed)))
        late = {
            source: at
            for source, at in late.items()
            if pipeline.group.in_force(self._name, [source])
        }
        if late:
            self._world.tally["offsets committed with a later transaction"] += 1
            pipeline.delayed += 1
            pipeline.offsets.update(late)

    def _leave_gaps(self, messages: Iterable[Outgoing]) -> None:
        for target, *_ in messages:
            if target.topic == TOPIC:
                self._world.topic.now.ends[target] += 1


class JoinerProcess(Process):
    """A joiner."""

    kind = "joiner"

    def __init__(self, name: str, pipeline: Pipeline, world: Place) -> None:
        super().__init__(name, world)
        self._pipeline = pipeline
        self.joiner: Joiner | None = None

    @property
    def up(self) -> bool:
        return self.joiner is not None

    @property
    def replica(self) -> None:
        return None

    def _start(self) -> None:
        world = self.world
        reader = self._pipeline.group.join(self.name, world.pause)
        reader.most_records = world.plan.joiner_polls
        aborts = AbortBackoff(600.0, world.now_ms, lambda _: world.pass_time(20))
        transactions = SimulatedTransactions(self._pipeline, self.name, world)
        self.joiner = Joiner(
            TransactionalPorts(reader, transactions, world.now_ms, aborts, retry_for(0.0)),
            "simulated",
            FIELDS,
            EventTopics(),
            _PACE,
        )

    def _step(self) -> None:
        assert self.joiner is not None
        try:
            self.joiner.step(0.0)
        except OffsetGone as refusal:
            if not self._pipeline.cut_beyond_positions:
                raise Broken(f"{self.name} refuses logs that have all it joined") from refusal
            raise Refused from refusal
        except (WriteRefused, BadCheckpoint, KafkaUnreachable) as error:
            self.world.tally[f"joiners stopped by {type(error).__name__}"] += 1
            self._drop()

    def _finish(self) -> None:
        assert self.joiner is not None
        try:
            self.joiner.finish()
        except WriteRefused:
            self.world.tally["joiners stopped by WriteRefused"] += 1

    def _drop(self) -> None:
        self.joiner = None
        self._pipeline.group.leave(self.name)
