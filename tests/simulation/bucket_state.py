"""Reads the state of a bucket from the keys of the embedded server, without a command."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from headrace.pserver.store import OWN_FIELDS
from tests.embedded_valkey.keyspace import Hash, Stream, Value

Standing = tuple[int, bytes, int, int]
"""Version, nonce, what is trimmed, and how many folds its lease has had."""


class BucketState(NamedTuple):
    """The marks of a bucket."""

    version: int
    nonce: bytes
    trimmed: int
    folds: int
    keeper: str
    lease_ms: int
    marks: Mapping[str, int]

    @property
    def standing(self) -> Standing:
        """Return the progress of the bucket."""
        return self.version, self.nonce, self.trimmed, self.folds


def read_state(marks: Value | None) -> BucketState | None:
    """Return what the key `marks` of a bucket says; None if the bucket is missing."""
    if not isinstance(marks, dict) or b"version" not in marks:
        return None
    named = {name.decode(): value for name, value in marks.items()}
    return BucketState(
        int(named["version"]),
        named["nonce"],
        int(named["trimmed"]),
        int(named["folds"]),
        named["keeper"].decode(),
        int(named["lease_ms"]),
        {name: int(value) for name, value in named.items() if name not in OWN_FIELDS},
    )


def entries_in(log: Value | None) -> int:
    """Return the number of entries in the key `log` of a bucket."""
    return len(log.ids) if isinstance(log, Stream) else 0


def folded_versions(rows: Iterable[Value | None]) -> dict[int, int]:
    """Return the version of every row in the sub-hashes of a bucket, by id."""
    hashes: list[Hash] = [each for each in rows if isinstance(each, dict)]
    return {
        int.from_bytes(name, "little"): int.from_bytes(blob[:8], "little")
        for each in hashes
        for name, blob in each.items()
    }
