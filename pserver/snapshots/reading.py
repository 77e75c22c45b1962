"""The rows of one bucket of a snapshot, if they are what was written."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pserver.errors import CorruptEntry
from pserver.snapshots.errors import DamagedSnapshot
from pserver.snapshots.rows_file import unpack
from pserver.snapshots.verifying import wrong_bytes

if TYPE_CHECKING:
    from pserver.rows import Rows
    from pserver.snapshots.manifest import BucketFile, Manifest
    from pserver.snapshots.shelf import Shelf


def read_bucket(
    shelf: Shelf, manifest: Manifest, file: BucketFile, *, trusting: bool = False
) -> list[Rows]:
    """Return the rows of a bucket's file in chunks, ids ascending; the arrays are read-only.

    `trusting`: do not compare its bytes with their digest. Raises DamagedSnapshot, StorageFailed.
    """
    blob = shelf.read(manifest.name, file.file)
    wrong = "missing" if blob is None else "" if trusting else wrong_bytes(blob, file)
    if blob is None or wrong:
        raise DamagedSnapshot(manifest.name, [f"{file.file}: {wrong}"])
    try:
        return list(unpack(blob, manifest.width))
    except CorruptEntry as error:
        raise DamagedSnapshot(manifest.name, [f"{file.file}: {error}"]) from error
