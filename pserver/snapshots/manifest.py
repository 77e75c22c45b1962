"""What a snapshot says of itself: the model, and for every bucket its file, version and marks.

JSON, sealed: the digest of the manifest's own bytes stands before it, so that a mark or a version
that changed on a disk is found like a changed row. What is not understood is refused by name.
"""

from __future__ import annotations

import hashlib
import re
from datetime import UTC, datetime

import msgspec

from headrace.pserver.store import Shape

FORMAT = 1
FILE = "manifest.json"
_NAME = re.compile(r"(\d{8}T\d{6}\.\d{3}Z)-([a-z0-9_-]+)-([0-9a-f]{4})")


class BadManifest(ValueError):
    """These bytes are no manifest, or not the one that was written."""


class BucketFile(msgspec.Struct, frozen=True):
    """One bucket at one version, and the file with its rows."""

    bucket: int
    version: int
    nonce: str
    """Of the entry `version`, in hex: the history that the rows are of."""
    marks: dict[str, int]
    """Source -> first offset that these rows have not learned from."""
    rows: int
    event_ms: int
    """Greatest event time that the log told of; 0 if it was empty."""
    append_ms: int
    """Greatest append time of an event learned from, likewise."""
    first_seen_s: int
    """Least event time of its rows; 0 without any."""
    last_seen_s: int
    """Greatest event time of its rows; 0 without any."""
    file: str
    size_bytes: int
    sha256: str
    """Of the file."""
    checksum: str
    """Of the rows, as a replica at this version computes it."""


class Manifest(msgspec.Struct, frozen=True):
    """A snapshot."""

    name: str
    model: str
    spec: str
    """The model spec, as the store kept it."""
    fingerprint: str
    width: int
    buckets: int
    sub_hashes: int
    """Of each bucket in the store it was taken from."""
    begun_ms: int
    ended_ms: int
    headrace: str
    """The version that wrote it."""
    files: list[BucketFile]
    """In the order of buckets, each once."""
    as_of_ms: int | None = None
    """For a model that was rebuilt: it has learned what was appended to Kafka before this time."""
    format: int = FORMAT

    @property
    def shape(self) -> Shape:
        """The model as a store has it."""
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
    def first_event_ms(self) -> int:
        """Least event time of any row; 0 if there is none."""
        return 1000 * min((each.first_seen_s for each in self.files if each.rows), default=0)

    @property
    def newest_event_ms(self) -> int:
        """Greatest event time it has learned from, as far as it knows; 0 if none."""
        return max(max(each.event_ms, 1000 * each.last_seen_s) for each in self.files)


class _Sealed(msgspec.Struct, forbid_unknown_fields=True):
    sha256: str
    manifest: msgspec.Raw


class _Format(msgspec.Struct):
    format: int


def name_of(model: str, at_ms: int, token: str) -> str:
    """Return a name that sorts by time; `token`, four hex digits, tells two of one moment apart."""
    at = datetime.fromtimestamp(at_ms / 1000, UTC)
    return f"{at:%Y%m%dT%H%M%S}.{at_ms % 1000:03d}Z-{model}-{token}"


def model_of(name: str) -> str | None:
    """Return the model of a snapshot's name, None if it is no such name."""
    found = _NAME.fullmatch(name)
    return None if found is None else found.group(2)


def encode(manifest: Manifest) -> bytes:
    """Return the sealed manifest."""
    body = msgspec.json.encode(manifest)
    digest = hashlib.sha256(body).hexdigest()
    return b'{"sha256":"%s","manifest":%s}' % (digest.encode(), body)


def decode(blob: bytes) -> Manifest:
    """Return what `encode` was given. Raises BadManifest."""
    try:
        sealed = msgspec.json.decode(blob, type=_Sealed)
        body = bytes(sealed.manifest)
        digest = hashlib.sha256(body).hexdigest()
        if digest != sealed.sha256:
            raise BadManifest(f"expected sha256 {sealed.sha256}, found {digest}")
        found = msgspec.json.decode(body, type=_Format).format
        if found != FORMAT:
            raise BadManifest(f"expected format {FORMAT}, found {found}")
        manifest = msgspec.json.decode(body, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadManifest(f"cannot be read: {error}") from error
    listed = [each.bucket for each in manifest.files]
    if listed != list(range(manifest.buckets)):
        raise BadManifest(f"expected a file for each of {manifest.buckets} buckets, found {listed}")
    return manifest
