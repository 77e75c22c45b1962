"""One run of a joiner over Kafka in memory."""

import secrets
from collections.abc import Callable, Mapping, Sequence

import msgspec

from headrace.ingest.examples.splitting import Cut
from headrace.ingest.features.fields import FieldSet
from headrace.ingest.joiner.committed_state import SavedCheckpoint
from headrace.ingest.joiner.loop import Joiner, JoinerPacing
from headrace.ingest.kafka.fakes import ListReader, ListTransactions, memory_ports
from headrace.ingest.kafka.protocols import Record, Source
from headrace.ingest.kafka.topics import examples_topic
from tests.ingest.events_of import TOPICS, examples_in, fields_of

PARTITIONS = 2
MODEL = "test"
EXAMPLES = examples_topic(MODEL)
EAGER = JoinerPacing(lazy_commit_ms=0, turn_events=50, step_events=200, cut=Cut(most=20, least=1))


class JoinerRun:
    """One joiner process, until the test drops it."""

    def __init__(
        self,
        records: Mapping[Source, Sequence[Record]],
        transactions: ListTransactions,
        *,
        policy: str = "immediate",
        largest_poll: int = 1_000,
        pace: JoinerPacing = EAGER,
        join_again: bool = False,
        fields: FieldSet | None = None,
        draw_name: Callable[[], str] = lambda: secrets.token_hex(4),
    ) -> None:
        """fields: other ones than those of `policy`."""
        self.clock_ms = 1_000
        self.rests: list[float] = []
        self.reader = ListReader(records, largest_poll=largest_poll)
        self.transactions = transactions
        self.joiner = Joiner(
            memory_ports(self.reader, transactions, lambda: self.clock_ms, self.rests.append),
            MODEL,
            fields or fields_of(policy),
            TOPICS,
            pace,
            join_again=join_again,
            draw_name=draw_name,
        )

    def run(self) -> None:
        """Step until everything is committed."""
        for _ in range(10_000):
            self.joiner.step(0.0)
            if self.done:
                return
        raise AssertionError(f"stuck at {self.transactions.offsets}")

    @property
    def done(self) -> bool:
        return all(
            source in self.transactions.offsets
            and self.transactions.offsets[source].offset == self.reader.bounds(source)[1]
            for source in self.reader.records
        )

    @property
    def examples(self) -> list[tuple[int, int, int, str, int]]:
        fields = self.joiner.fields
        return list(examples_in(self.transactions.written, EXAMPLES, fields))


def saved(transactions: ListTransactions, partition: int) -> SavedCheckpoint:
    """The checkpoint in the committed offset of a partition."""
    text = transactions.offsets[Source(TOPICS.impressions, partition)].metadata
    return msgspec.json.decode(text, type=SavedCheckpoint)
