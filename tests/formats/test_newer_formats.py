"""Data of a later format is refused by number, with what to do.

The tests of the snapshot's manifest and the joiner's checkpoint have the same rule.
"""

import struct
from collections.abc import Callable
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from headrace.ingest.examples.batch import DamagedExamples, UnreadableExamples, unpack
from headrace.pserver.errors import CorruptEntry, StoreError
from headrace.pserver.redis_backend.node_connection import Call
from headrace.pserver.redis_backend.redis_store import RedisStore
from headrace.pserver.relay.relay_block import BlockHeader, RelayPosition, block_header
from headrace.pserver.rows.deltas import EntryHeader, unpack_entry
from tests.embedded_valkey.server import EmbeddedValkey
from tests.formats import golden
from tests.formats.small_model import example_records, spec_of

REFUSED = (
    "expected format 1( or 2)?, got 9: use the version of headrace that wrote (it|them), or a newer"
)


def test_a_store_of_a_later_format_is_refused_with_what_to_do() -> None:
    server = EmbeddedValkey(lambda: 0)
    server.run(golden.calls_to_load(golden.read("store.json"), ""))
    key = b"{test}:shape"
    [shape] = server.run([Call(key, ("GET", key))])
    server.run([Call(key, ("SET", key, shape.replace(b'"format":1', b'"format":9')))])
    store = RedisStore(server, "test")  # type: ignore[arg-type]  # takes the place of the client
    with pytest.raises(StoreError, match=rf"{{test}}:shape: {REFUSED}"):
        store.shape()


def test_examples_of_a_later_format_are_refused_with_what_to_do() -> None:
    fields = spec_of("immediate").fields
    with pa.ipc.open_stream(
        example_records(golden.read("joined_immediate.json"))[-1].value
    ) as stream:
        batch, facts = stream.read_next_batch(), {**stream.schema.metadata, b"format": b"9"}
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema.with_metadata(facts)) as written:
        written.write_batch(batch.replace_schema_metadata(facts))
    with pytest.raises(UnreadableExamples, match=f"examples: {REFUSED}") as caught:
        unpack(sink.getvalue().to_pybytes(), fields)
    assert not isinstance(caught.value, DamagedExamples), "an operator must not skip it"


@pytest.mark.parametrize(
    ("header", "read", "name"),
    [
        (EntryHeader(1, 0, 0, 0, [], format=9), unpack_entry, "log entry"),
        (
            BlockHeader("", 0, 1, 0, None, RelayPosition(1, b""), 0, 0, [], [], format=9),
            block_header,
            "relay block",
        ),
    ],
)
def test_an_entry_of_a_later_format_is_refused_with_what_to_do(
    header: msgspec.Struct, read: Callable[[bytes], Any], name: str
) -> None:
    encoded = msgspec.msgpack.encode(header)
    with pytest.raises(CorruptEntry, match=f"{name}: {REFUSED}"):
        read(struct.pack("<I", len(encoded)) + encoded)
