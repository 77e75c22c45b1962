"""Reads a message that is one Arrow record batch, and nothing that its bytes cannot hold.

Arrow's reader trusts the offsets in a batch. A damaged message would make readers of its columns
access memory outside of it, which ends the process. So every batch is validated completely before
anyone reads it, as Arrow's documentation demands for bytes from outside. Compressed batches are
refused, because a small message may unpack to any size. headrace writes none: Kafka compresses.

*Refused:* a checksum of the message. It finds accidents, but not a batch that was made this way.
"""

import struct
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa

UNREADABLE_ARROW = (
    *(pa.ArrowException, OSError, ValueError, LookupError, TypeError, EOFError, StopIteration),
    struct.error,
)
"""Errors of Arrow for bytes of another format. Text that is not UTF-8 is a ValueError."""
_ALIGNMENT = 8
_COMPRESSION_SLOT = 4 + 2 * 3
"""Place of the fourth field of the flatbuffer `RecordBatch` in its table of offsets."""
_HEADER_SLOT = 4 + 2 * 2
"""The same of the third field of the flatbuffer `Message`."""


class UnreadableBatch(ValueError):
    """The bytes are not one sound record batch with the expected columns."""


class OpenedBatch(NamedTuple):
    """The header of a batch, and its columns before they are validated."""

    schema: pa.Schema
    message: pa.Message

    @property
    def metadata(self) -> Mapping[bytes, bytes]:
        """The metadata of the schema."""
        return self.schema.metadata or {}

    def read(self, types: Mapping[str, Sequence[pa.DataType]]) -> pa.RecordBatch:
        """Return the batch, validated; its columns are views of the bytes.

        types: the columns that must be there, and the types that each may have. Raises
        UnreadableBatch.
        """
        _check_types(self.schema, types)
        body = self.message.body
        try:
            if _compressed(self.message.metadata):
                raise UnreadableBatch("expected a batch without compression, got a compressed one")
            if body is not None and body.address % _ALIGNMENT:
                raise UnreadableBatch(f"expected columns at multiples of {_ALIGNMENT} bytes")
            batch = pa.ipc.read_record_batch(self.message, self.schema)
            batch.validate(full=True)
        except UNREADABLE_ARROW as error:
            raise UnreadableBatch(f"expected a sound Arrow batch, got: {error}") from error
        return batch


def open_batch(blob: bytes) -> OpenedBatch:
    """Open an Arrow stream of one batch. Raises UnreadableBatch."""
    try:
        messages = pa.ipc.MessageReader.open_stream(pa.py_buffer(blob))
        schema, batch = messages.read_next_message(), messages.read_next_message()
        if (schema.type, batch.type) != ("schema", "record batch"):
            # Arrow would read the header of another type unverified, as if it were a schema
            raise UnreadableBatch(f"expected a schema and a batch, got {schema.type}, {batch.type}")
        return OpenedBatch(pa.ipc.read_schema(schema), batch)
    except UNREADABLE_ARROW as error:
        raise UnreadableBatch(f"expected an Arrow batch, got {len(blob)} bytes: {error}") from error


def _check_types(schema: pa.Schema, types: Mapping[str, Sequence[pa.DataType]]) -> None:
    for name, expected in types.items():
        found = schema.get_all_field_indices(name)
        if len(found) != 1 or schema.field(found[0]).type not in expected:
            got = " and ".join(str(schema.field(each).type) for each in found) or "no such column"
            raise UnreadableBatch(f"column {name}: expected {expected[0]}, got {got}")


def _compressed(metadata: pa.Buffer) -> bool:
    """Return whether the header of a record batch, a flatbuffer that Arrow verified, names a codec.

    Arrow's Python interface does not show it.
    """
    (message,) = struct.unpack_from("<I", metadata)
    header = _field(metadata, message, _HEADER_SLOT)
    if header is None:
        return False
    (distance,) = struct.unpack_from("<I", metadata, header)
    return _field(metadata, header + distance, _COMPRESSION_SLOT) is not None


def _field(flat: pa.Buffer, table: int, slot: int) -> int | None:
    """Return the place of a field of a flatbuffer's table; None if the table lacks it."""
    (distance,) = struct.unpack_from("<i", flat, table)
    offsets = table - distance
    (size,) = struct.unpack_from("<H", flat, offsets)
    if slot >= size:
        return None
    (place,) = struct.unpack_from("<H", flat, offsets + slot)
    return table + place if place else None
