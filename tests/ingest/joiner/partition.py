"""Builds events of one partition in short form, and joins them."""

from collections.abc import Iterable, Sequence

import orjson

from headrace.ingest.examples.batch import Examples
from headrace.ingest.features.fields import FieldSet, parse_fields
from headrace.ingest.features.spec_text import SpecText
from headrace.ingest.joiner.committed_state import SavedCheckpoint, load_checkpoint
from headrace.ingest.joiner.core.checkpoint import JoinerCheckpoint
from headrace.ingest.joiner.core.input import ChunkReader, EventSide
from headrace.ingest.joiner.core.join import DeadEvent, PartitionJoiner
from headrace.ingest.kafka.protocols import MessageBlock, Record, Source

T0_MS = 1_700_000_000_000
WINDOW_MS = 100
LONG_AGO_MS = T0_MS + 10_000_000
"""Append time of a backlog: all events at once, long after they happened."""

_SPEC = """
[label]
policy = "{policy}"
window_s = 0.1
wait_s = {wait_s}
[examples]
slice_by = ["device"]
{examples}
[fields.user]
number = 1
transform = "id"
[fields.tags]
number = 2
transform = "bag"
[fields.price]
number = 3
transform = "number"
[fields.words]
number = 4
transform = "bag"
"""


def fields_of(policy: str = "immediate", examples: str = "", wait_ms: int = 0) -> FieldSet:
    """Return the fields of these events. examples: further lines of that section."""
    text = _SPEC.format(policy=policy, examples=examples, wait_s=wait_ms / 1000)
    where = SpecText("test.toml", text)
    return parse_fields(where.tables(), where)


def shown(identity: str, at: int, **more: object) -> bytes:
    """Return an impression `at` milliseconds after the beginning."""
    return orjson.dumps({"impression_id": identity, "timestamp_ms": T0_MS + at, **more})


def clicked(identity: str, at: int) -> bytes:
    return orjson.dumps({"impression_id": identity, "timestamp_ms": T0_MS + at})


def tick(at: int) -> bytes:
    return orjson.dumps({"timestamp_ms": T0_MS + at})


def records(
    side: EventSide, values: Iterable[bytes], append_ms: int | Sequence[int] = LONG_AGO_MS
) -> list[Record]:
    """Return messages as Kafka does; offsets have gaps, as transaction markers leave."""
    values = list(values)
    times = [append_ms] * len(values) if isinstance(append_ms, int) else list(append_ms)
    source = Source(("impressions", "clicks")[side], 0)
    return [
        Record(source, 10 + 2 * place, time, value)
        for place, (time, value) in enumerate(zip(times, values, strict=True))
    ]


class Partition:
    """A joiner and all its output."""

    def __init__(self, policy: str = "immediate", examples: str = "", wait_ms: int = 0) -> None:
        self.fields = fields_of(policy, examples, wait_ms)
        self.reader = ChunkReader(self.fields)
        self.joiner = PartitionJoiner(self.fields)
        self.made: list[tuple[str, str, int]] = []
        self.dead: list[DeadEvent] = []

    def offer(self, side: EventSide, found: Sequence[Record]) -> None:
        if found:
            self.joiner.offer(self.reader.read(side, MessageBlock.of(found)))

    def advance(self, now_ms: int = 0, limit: int = 4096) -> list[tuple[str, str, int]]:
        joined = self.joiner.advance(now_ms, limit)
        made = brief(joined.examples)
        self.made += made
        self.dead += joined.dead
        return made

    def join(
        self, impressions: Iterable[bytes], clicks: Iterable[bytes]
    ) -> list[tuple[str, str, int]]:
        """Offer all events, mark both sources as ended, and join."""
        for side, values in ((EventSide.IMPRESSIONS, impressions), (EventSide.CLICKS, clicks)):
            self.offer(side, records(side, values))
            self.joiner.ended(side)
        return self.advance()


def brief(examples: Examples) -> list[tuple[str, str, int]]:
    """Return kind, impression and label of each example."""
    names = ("shown", "clicked", "closed")
    kinds = [names[kind] for kind in examples.kinds]
    return list(
        zip(kinds, examples.impression_ids.to_pylist(), examples.labels.tolist(), strict=True)
    )


def committed_checkpoint(joiner: PartitionJoiner) -> JoinerCheckpoint:
    """The checkpoint of a joiner, as another process reads it from Kafka."""
    saved = SavedCheckpoint("fields", ("impressions", "clicks"), joiner.checkpoint())
    return load_checkpoint(saved.to_json(), "fields", "impressions/0").checkpoint
