"""The path of an event to the topic of examples: producer, event topics, joiners, transactions.

In a world with joiners, the learners read what the joiners commit. The joiners run the product's
`KafkaTransactions` on a simulated client (`producer_client`), which talks to a simulated `broker`.
Kafka may forget the committed offsets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from headrace.ingest.errors import BadCheckpoint, Fenced, KafkaUnreachable, OffsetGone, WriteRefused
from headrace.ingest.examples.splitting import Cut
from headrace.ingest.joiner.loop import Joiner, JoinerPacing
from headrace.ingest.kafka.retry import AbortBackoff, retry_for
from headrace.ingest.kafka.settings import TRANSACTION_TIMEOUT_MS, KafkaSettings
from headrace.ingest.kafka.topics import EventTopics
from headrace.ingest.kafka.transactional_ports import TransactionalPorts
from headrace.ingest.kafka.transactions import KafkaTransactions
from tests.simulation.batches import Total, fields_of
from tests.simulation.bounded import projected
from tests.simulation.broker import Broker
from tests.simulation.events import EventLogs, Producer
from tests.simulation.kafka import Group
from tests.simulation.ledger import Broken, differences
from tests.simulation.processes import Process, Refused
from tests.simulation.producer_client import LARGEST_MESSAGE, SimulatedOffsets

if TYPE_CHECKING:
    from tests.simulation.world import World

_SETTINGS = KafkaSettings("simulated:9092")
_CUT = Cut(least=4, most_bytes=LARGEST_MESSAGE // 4)
_PACE = JoinerPacing(
    lazy_commit_ms=100, backlog_commit_ms=50, turn_events=16, step_events=128, ahead_limit=64
)


class Pipeline:
    """All that is in front of the topic of examples."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.topics = EventLogs(world.plan.partitions)
        self.producer = Producer(self.topics, world.plan, world.dice, world.tally)
        self.group = Group(self.topics, world.dice, world.tally)
        self.broker = Broker(world, self.group, TRANSACTION_TIMEOUT_MS)
        self.cut_beyond_positions = False
        """Whether a log lost events that were joined."""
        names = [f"joiner {i}" for i in range(world.plan.joiners)]
        self.joiners = [JoinerProcess(name, self, world) for name in names]

    def arrive(self) -> None:
        """Deliver one of the delayed requests of producers, if there are any."""
        if self.broker.late:
            self.broker.arrive()

    def forget_offsets(self) -> None:
        """Let Kafka forget the offsets of a group that was empty for a long time."""
        if self.broker.offsets and not any(joiner.running for joiner in self.joiners):
            self._world.tally["committed offsets forgotten"] += 1
            self.broker.disturbed = True
            for joiner in self.joiners:
                joiner.kill()
            self.broker.offsets.clear()
            self.broker.past.clear()

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
        self.producer.lose(source, end, self.broker.letters)
        beyond = self.broker.reached.get(source, 0) > end
        world.tally["logs cut that were joined" if beyond else "logs of events cut"] += 1
        self.cut_beyond_positions |= beyond
        while life.ends[source] <= before:
            self.producer.send(source.partition, world.wall_ms())

    def unjoined(self) -> str:
        """Say which events are not joined and committed; empty if all are."""
        for share in self.topics.shares:
            parts = [
                part
                for process in self.joiners
                if process.joiner is not None
                for part in process.joiner.partitions.values()
                if share[0] in part.sources.values()
            ]
            if len(parts) != 1 or parts[0].core.restoring or parts[0].uncommitted or parts[0].dead:
                return f"{share} is not joined"
            ends = parts[0].core.window.ends
            if ends.made_head[0] < ends.entry_tail[0]:
                return f"{share} has impressions that wait for their clicks"
            committed = {source: at.offset for source, at in self.broker.offsets.items()}
            for source in share:
                joined, end = parts[0].offsets()[source].offset, self.topics.now.ends[source]
                # a late copy of a request may put committed offsets back; the examples decide
                if joined != end or (committed.get(source) != end and not self.broker.disturbed):
                    at = joined, committed.get(source)
                    return f"{source} is joined and committed up to {at} of {end}"
        return ""

    def verify(self, rows: Mapping[int, Total]) -> None:
        """Raise Broken unless each event counts once in the rows, or is one dead letter."""
        if wrong := differences(rows, projected(self.producer.truth(), self._world.plan)):
            raise Broken(f"rows are not what the producer sent: {wrong}")
        found, sent = sorted(self.broker.letters), sorted(self.producer.refused)
        if self.broker.disturbed:  # what follows the last examples is joined again
            found = sorted(set(found))
            if self.broker.silent:
                sent = sorted(set(sent).intersection(found))
        if found != sent:
            raise Broken(f"dead letters of events: expected {sent}, got {found}")


class JoinerProcess(Process):
    """A joiner."""

    kind = "joiner"

    def __init__(self, name: str, pipeline: Pipeline, world: World) -> None:
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
        reader = self._pipeline.group.join(self.name, world.pause, world.plan.old_ends)
        reader.most_records = world.plan.joiner_polls
        aborts = AbortBackoff(600.0, world.now_ms, lambda _: world.pass_time(20))
        offsets = SimulatedOffsets(self.name, reader, self._pipeline.broker, world)
        try:
            transactions = KafkaTransactions(_SETTINGS, self.name, offsets)
        except KafkaUnreachable:
            world.tally["joiners that did not connect"] += 1
            self._drop()
            return
        most = world.plan.most_in_message
        cut = replace(_CUT, most=most, merged=most // 2, least=min(_CUT.least, most))
        self.joiner = Joiner(
            TransactionalPorts(reader, transactions, world.now_ms, aborts, retry_for(0.0)),
            "simulated",
            fields_of(world.plan.wait_s),
            EventTopics(),
            replace(_PACE, cut=cut),
        )

    def _step(self) -> None:
        assert self.joiner is not None
        try:
            self.joiner.step(0.0)
        except OffsetGone as refusal:
            if not self._pipeline.cut_beyond_positions:
                raise Broken(f"{self.name} refuses logs that have all it joined") from refusal
            raise Refused from refusal
        except (WriteRefused, BadCheckpoint, KafkaUnreachable, Fenced) as error:
            self.world.tally[f"joiners stopped by {type(error).__name__}"] += 1
            self._drop()

    def _finish(self) -> None:
        assert self.joiner is not None
        try:
            self.joiner.finish()
        except (WriteRefused, KafkaUnreachable, Fenced) as error:
            self.world.tally[f"joiners stopped by {type(error).__name__}"] += 1

    def _drop(self) -> None:
        self.joiner = None
        self._pipeline.group.leave(self.name)
