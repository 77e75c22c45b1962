"""Reads and writes golden files: readable JSON, with base64 only for bytes that are not text."""

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from headrace.ingest.examples.batch import Examples
from headrace.ingest.kafka.fakes import ListTransactions
from headrace.ingest.kafka.protocols import Committed, Record, Source
from headrace.ingest.kafka.transactions import Outgoing
from headrace.pserver.redis_backend.node_connection import Call
from tests.embedded_valkey.keyspace import Stream, Value

V1 = Path(__file__).parent / "v1"
_BASE64 = "base64:"


def read(name: str) -> Any:
    """Return the content of a golden file."""
    return json.loads((V1 / name).read_text())


def write(name: str, content: Mapping[str, Any] | Sequence[Any]) -> None:
    """Write a golden file, one line for each entry of its lists."""
    (V1 / name).parent.mkdir(parents=True, exist_ok=True)
    (V1 / name).write_text(_lines(content, 2) + "\n")


def _lines(content: Any, depth: int) -> str:
    if depth and content and isinstance(content, dict | list):
        if isinstance(content, dict):
            parts = [
                f"{json.dumps(key)}: {_lines(each, depth - 1)}" for key, each in content.items()
            ]
            return "{\n" + ",\n".join(parts) + "\n}"
        return "[\n" + ",\n".join(json.dumps(each) for each in content) + "\n]"
    return json.dumps(content)


def text_of(blob: bytes) -> str:
    """Return bytes as they are if they are printable text, else in base64."""
    try:
        text = blob.decode()
    except UnicodeDecodeError:
        text = ""
    if text.isprintable() and (text or not blob):
        return text
    return _BASE64 + base64.b64encode(blob).decode()


def bytes_of(text: str) -> bytes:
    """Return the bytes that `text_of` was given."""
    encoded = text.removeprefix(_BASE64)
    return text.encode() if encoded == text else base64.b64decode(encoded)


# ---------------------------------------------------------------- Kafka


def of_records(records: Iterable[Record]) -> list[Any]:
    """Return records as lists: topic, partition, offset, append time, value."""
    return [[*each.source, each.offset, each.append_ms, text_of(each.value)] for each in records]


def records_by_source(found: Sequence[Any]) -> dict[Source, list[Record]]:
    """Return the records that `of_records` was given, by source."""
    records: dict[Source, list[Record]] = {}
    for topic, partition, offset, append_ms, value in found:
        source = Source(topic, partition)
        records.setdefault(source, []).append(Record(source, offset, append_ms, bytes_of(value)))
    return records


def of_transactions(transactions: ListTransactions) -> dict[str, Any]:
    """Return the messages and offsets of committed transactions."""
    return {
        "messages": [[*each.target, text_of(each.value)] for each in transactions.written],
        "offsets": [[*source, *committed] for source, committed in transactions.offsets.items()],
    }


def transactions_of(found: Mapping[str, Any]) -> ListTransactions:
    """Return a Kafka in memory with these messages and offsets."""
    transactions = ListTransactions()
    transactions.written = [
        Outgoing(Source(topic, partition), bytes_of(value))
        for topic, partition, value in found["messages"]
    ]
    transactions.offsets = {
        Source(topic, partition): Committed(*committed)
        for topic, partition, *committed in found["offsets"]
    }
    return transactions


def columns_of(examples: Examples) -> dict[str, Any]:
    """Return everything in a batch of examples as numbers, strings and lists."""
    features = examples.features
    bags = [
        features.bag_ids[begin:end].tolist()
        for begin, end in zip(features.bag_offsets[:-1], features.bag_offsets[1:], strict=True)
    ]
    weights = examples.weights
    return {
        "fingerprint": examples.fingerprint,
        "watermark_ms": examples.watermark_ms,
        "negative_rate": examples.negative_rate,
        "before": examples.before,
        "kinds": examples.kinds.tolist(),
        "labels": examples.labels.tolist(),
        "event_ms": examples.event_ms.tolist(),
        "shown_ms": examples.shown_ms.tolist(),
        "append_ms": examples.append_ms.tolist(),
        "impression_ids": examples.impression_ids.to_pylist(),
        "request_ids": examples.request_ids.to_pylist(),
        "ids": features.ids.tolist(),
        "bags": bags,
        "numbers": features.numbers.tolist(),
        "slices": {name: values.to_pylist() for name, values in examples.slices.items()},
        "weights": None if weights is None else weights.tolist(),
    }


# ---------------------------------------------------------------- the store


def of_keys(values: Mapping[bytes, Value]) -> list[Any]:
    """Return the keys of a store as lists: key, type, content."""
    return [[text_of(key), *_of_value(value)] for key, value in sorted(values.items())]


def _of_value(value: Value) -> tuple[str, Any]:
    if isinstance(value, bytes):
        return "string", text_of(value)
    if isinstance(value, Stream):
        entries = zip(value.ids, value.fields, strict=True)
        return "stream", [[f"{at[0]}-{at[1]}", *map(text_of, words)] for at, words in entries]
    return "hash", {text_of(name): text_of(each) for name, each in value.items()}


def calls_to_load(found: Sequence[Any], prefix: str) -> list[Call]:
    """Return the commands that write the keys, each model's name behind a prefix."""
    calls = []
    for name, kind, content in found:
        key = name.replace("{", "{" + prefix, 1).encode()
        if kind == "string":
            calls.append(Call(key, ("SET", key, bytes_of(content))))
        elif kind == "hash":
            words = [bytes_of(word) for pair in content.items() for word in pair]
            calls.append(Call(key, ("HSET", key, *words)))
        else:
            calls += [Call(key, ("XADD", key, at, *map(bytes_of, words))) for at, *words in content]
    return calls
