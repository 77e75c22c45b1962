"""The manifest of a snapshot: the model, and for every bucket its file, version and marks.

JSON, sealed: the digest of the manifest's own bytes precedes it. A mark or a version that changed
on a disk is therefore found, like a changed row. Unknown formats are refused by name.
"""

import hashlib
import re
from datetime import UTC, datetime

import msgspec

from headrace.pserver.store import Shape
from headrace.runtime.undecodable import UNDECODABLE

FORMAT = 1
FILE = "manifest.json"
_NAME = re.compile(r"(\d{8}T\d{6}\.\d{3}Z)-([a-z0-9_-]+)-([0-9a-f]{4})")

_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


class BadManifest(ValueError):
    """The bytes are not a manifest, or differ from the one that was written."""


class BucketFile(msgspec.Struct, frozen=True):
    """One bucket at one version, and the file with its rows."""

    bucket: int
    version: int
    nonce: str
    """Nonce of the entry `version`, in hex: the history of the rows."""
    marks: dict[str, int]
    """Source -> first offset that these rows have not learned from."""
    rows: int
    event_ms: int
    """Greatest event time in the log; 0 if it was empty."""
    append_ms: int
    """Greatest append time of an event learned from; 0 if the log was empty."""
    first_seen_s: int
    """Least event time of its rows; 0 without rows."""
    last_seen_s: int
    """Greatest event time of its rows; 0 without rows."""
    file: str
    size_bytes: int
    sha256: str
    """Of the file."""
    checksum: str
    """Checksum of the rows in a replica at this version."""


class Manifest(msgspec.Struct, frozen=True):
    """The content of a snapshot."""

    name: str
    model: str
    spec: str
    """The model spec in the store."""
    fingerprint: str
    width: int
    buckets: int
    sub_hashes: int
    """Of each bucket in its store."""
    begun_ms: int
    ended_ms: int
    headrace: str
    """The version of headrace that wrote the snapshot."""
    files: list[BucketFile]
    """In the order of buckets, each once."""
    as_of_ms: int | None = None
    """For a rebuilt model: it has learned the events appended to Kafka before this time."""
    format: int = FORMAT

    @property
    def shape(self) -> Shape:
        """The shape of the model in a store."""
        return Shape(self.model, self.buckets, self.width, self.fingerprint, self.spec)

    @property
    def rows(self) -> int:
        """Of all buckets."""
        return sum(each.rows for each in self.files)

    @property
    def size_bytes(self) -> int:
        """Of all files of rows."""
        return sum(each.size_bytes for each in self.files)

    @property
    def newest_event_ms(self) -> int:
        """Greatest known event time that it has learned from; 0 if unknown."""
        return max(max(each.event_ms, 1000 * each.last_seen_s) for each in self.files)


class _Sealed(msgspec.Struct, forbid_unknown_fields=True):
    sha256: str
    manifest: msgspec.Raw


class _Format(msgspec.Struct):
    format: int


def name_of(model: str, at_ms: int, token: str) -> str:
    """Return a name that sorts by time; `token`, four hex digits, separates equal times."""
    at = datetime.fromtimestamp(at_ms / 1000, UTC)
    return f"{at:%Y%m%dT%H%M%S}.{at_ms % 1000:03d}Z-{model}-{token}"


def model_of(name: str) -> str | None:
    """Return the model of a snapshot's name; None if it is another kind of name."""
    found = _NAME.fullmatch(name)
    return None if found is None else found.group(2)


def encode(manifest: Manifest) -> bytes:
    """Return the sealed manifest."""
    body = msgspec.json.encode(manifest)
    digest = hashlib.sha256(body).hexdigest()
    return b'{"sha256":"%s","manifest":%s}' % (digest.encode(), body)


def decode(blob: bytes) -> Manifest:
    """Return the manifest from sealed bytes. Raises BadManifest."""
    try:
        sealed = msgspec.json.decode(blob, type=_Sealed)
        body = bytes(sealed.manifest)
        digest = hashlib.sha256(body).hexdigest()
        if digest != sealed.sha256:
            raise BadManifest(f"expected sha256 {sealed.sha256}, got {digest}")
        found = msgspec.json.decode(body, type=_Format).format
        if found != FORMAT:
            raise BadManifest(
                f"expected format {FORMAT}, got {found}: use the version of headrace that wrote "
                "it, or a newer one"
            )
        manifest = msgspec.json.decode(body, type=Manifest)
    except UNDECODABLE as error:
        raise BadManifest(f"cannot be read: {error}") from error
    for each in manifest.files:
        if not _FILE_NAME.fullmatch(each.file):
            raise BadManifest(f"expected names of files in its own folder, got {each.file!r}")
    listed = [each.bucket for each in manifest.files]
    if len(listed) != manifest.buckets or listed != [*range(len(listed))]:
        raise BadManifest(f"expected a file for each of {manifest.buckets} buckets, got {listed}")
    return manifest
