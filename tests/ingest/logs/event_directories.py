"""Directories of events, as a replay reads them."""

import json
from pathlib import Path

import zstandard

START_MS = 1_700_000_000_000


def shown(i: int) -> bytes:
    return json.dumps({"impression_id": f"i{i}", "timestamp_ms": START_MS + 10 * i}).encode()


def clicked(i: int) -> bytes:
    return json.dumps({"impression_id": f"i{i}", "timestamp_ms": START_MS + 10 * i + 5}).encode()


def write_directory(path: Path, impressions: list[bytes], clicks: list[bytes]) -> Path:
    path.mkdir()
    (path / "impressions.ndjson").write_bytes(b"\n".join(impressions) + b"\n")
    packed = zstandard.compress(b"\n".join(clicks))
    (path / "clicks.ndjson.zst").write_bytes(packed)
    return path
