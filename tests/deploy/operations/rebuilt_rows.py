"""Reads the rows of a rebuilt model from its snapshot."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from headrace.pserver.rows.row_codec import FoldedRows
from headrace.pserver.snapshots.bucket_file import unpack
from headrace.pserver.snapshots.manifest import Manifest

if TYPE_CHECKING:
    from headrace.pserver.snapshots.storage import SnapshotStorage


def rows_of(storage: SnapshotStorage, manifest: Manifest) -> FoldedRows:
    """Return the rows of all buckets."""
    chunks = [
        chunk
        for each in manifest.files
        for chunk in unpack(storage.read(manifest.name, each.file) or b"", manifest.width)
    ]
    return FoldedRows._make(
        np.concatenate(column) for column in zip(*chunks, strict=True)
    ).existing()
