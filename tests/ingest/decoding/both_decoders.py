"""Compares the JSON scanner with the plain decoder, for events of every kind of field."""

import numpy as np

from headrace.ingest.events.contract import (
    IMPRESSION_ID,
    REQUEST_ID,
    TIME,
    Reason,
    is_tick,
    read_event,
)
from headrace.ingest.features.encoder import Encoder
from headrace.ingest.features.fields import FieldSet, parse_fields
from headrace.ingest.features.hashing import hash_values, texts
from headrace.ingest.features.spec_text import SpecText
from headrace.ingest.joiner.core.input import ChunkReader, EventChunk, EventRole, EventSide
from headrace.ingest.kafka.protocols import MessageBlock, Record, Source

NOW_MS = 1_700_000_000_000
SPEC = """
[examples]
slice_by = ["device", "word"]
[fields.word]
number = 1
transform = "id"
[fields.amount]
number = 2
transform = "log_bucket"
per_doubling = 3
[fields.plain]
number = 3
transform = "number"
log1p = true
[fields.both]
number = 4
transform = "id"
[fields.both_bucket]
number = 5
transform = "log_bucket"
source = "both"
[fields.tags]
number = 6
transform = "bag"
[fields.word_bag]
number = 7
transform = "bag"
source = "word"
[fields.hour]
number = 8
transform = "hour"
[fields.crossed]
number = 9
transform = "cross"
of = ["word", "both"]
[fields.moment]
number = 10
transform = "id"
source = "timestamp_ms"
[fields.identity]
number = 11
transform = "id"
source = "impression_id"
"""
DECLARED = ("word", "amount", "plain", "both", "tags", "device", "other", "other two", "ø")


def fields() -> FieldSet:
    where = SpecText("test.toml", SPEC)
    return parse_fields(where.tables(), where)


FIELDS = fields()
READER, ENCODER = ChunkReader(FIELDS), Encoder(FIELDS)


def block(values: list[bytes], append_ms: int = NOW_MS) -> MessageBlock:
    source = Source("shown", 0)
    return MessageBlock.of(
        [Record(source, 3 * i, append_ms, value) for i, value in enumerate(values)]
    )


def strings_of(chunk: EventChunk, place: int) -> list[str | None]:
    rows = chunk.rows
    return [
        bytes(rows.data[begin : begin + length]).decode() if length >= 0 else None
        for begin, length in zip(rows.begins[place], rows.lengths[place], strict=True)
    ]


def agree(values: list[bytes], append_ms: int = NOW_MS) -> None:
    """Check that both decoders agree, for impressions and for clicks."""
    expected = [read_event(value, append_ms) for value in values]
    for side in EventSide:
        chunk = READER.read(side, block(values, append_ms))
        assert chunk.refused == {i: e for i, e in enumerate(expected) if isinstance(e, Reason)}
        for place, event in enumerate(expected):
            if isinstance(event, Reason):
                assert chunk.arrays.roles[place] == EventRole.REFUSED
                continue
            role = EventRole.TICK if is_tick(event) else EventRole.EVENT
            assert chunk.arrays.roles[place] == role, values[place]
            assert chunk.arrays.event_ms[place] == event[TIME]
            [hashed] = hash_values([event.get(IMPRESSION_ID)])
            assert chunk.arrays.hashes[place] == hashed
    chunk = READER.read(EventSide.IMPRESSIONS, block(values, append_ms))
    kept = [(i, event) for i, event in enumerate(expected) if not isinstance(event, Reason)]
    for place, event in kept:
        encoded = ENCODER.encode([event])
        rows = chunk.rows
        assert rows.ids[place].tolist() == encoded.ids[0].tolist(), values[place]
        np.testing.assert_array_equal(rows.numbers[place], encoded.numbers[0])
        bags = len(FIELDS.bags)
        offsets = rows.bag_offsets[place * bags : (place + 1) * bags + 1]
        assert (offsets - offsets[0]).tolist() == encoded.bag_offsets.tolist()
        bag_ids = rows.bag_bytes.view(np.uint64)[offsets[0] : offsets[-1]]
        assert bag_ids.tolist() == encoded.bag_ids.tolist()
        names = (IMPRESSION_ID, REQUEST_ID, *FIELDS.slice_by)
        assert strings_of(chunk, place) == [texts([event.get(n)])[0].as_py() for n in names]
