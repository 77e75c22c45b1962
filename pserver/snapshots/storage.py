"""The storage of snapshots: a folder, or any URL that fsspec supports (s3://..., memory://).

A snapshot is a folder of its own, named by its time and model. A file system gets it under a
temporary name, which becomes the snapshot's name once everything is on the disk. Object stores
cannot rename, but each object appears completely or not at all; there the manifest is written last.
In both cases a folder without a manifest is not a snapshot, and removal begins with the manifest.

Leftovers of a killed writer or remover stay until `half_written` lists them for pruning.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import fsspec
from fsspec.implementations.local import LocalFileSystem

from headrace.pserver.snapshots import manifest as manifests
from headrace.pserver.snapshots.snapshot_errors import SnapshotError, StorageFailed

_ASIDE = ".partial-"


class Leftover(NamedTuple):
    """An unfinished snapshot, or the rest of one that was removed."""

    folder: str
    changed_ms: int | None
    """Time of the last write to it; None if the storage does not report it."""


class SnapshotStorage:
    """The snapshots at one URL. Safe for use from several threads."""

    def __init__(self, url: str) -> None:
        """`url`: a folder, or a URL that fsspec supports. Raises StorageFailed."""
        self.url = url
        with translated(url, "opening"):
            # an instance of its own: a shared one caches listings, and the settings that the
            # environment had when it was created
            self._files, root = fsspec.core.url_to_fs(
                url, skip_instance_cache=True, use_listings_cache=False
            )
        self._root = root.rstrip("/")
        self._renames = isinstance(self._files, LocalFileSystem)

    def names(self) -> list[str]:
        """Return the possible names of snapshots, the oldest first."""
        return sorted(name for name in self._folders() if manifests.model_of(name))

    def read(self, name: str, file: str) -> bytes | None:
        """Return a file of a snapshot; None if it is missing. Raises StorageFailed."""
        path = f"{self._root}/{name}/{file}"
        with translated(path, "reading"):
            try:
                return bytes(self._files.cat_file(path))
            except FileNotFoundError:
                return None

    def sizes(self, name: str) -> dict[str, int]:
        """Return the files of a snapshot and their sizes in bytes."""
        return {_last(each): int(each["size"]) for each in self._listed(f"{self._root}/{name}")}

    def begin(self, name: str) -> None:
        """Begin a snapshot."""
        if self._renames:
            with translated(self._aside(name), "making"):
                Path(self._aside(name)).mkdir(parents=True)

    def write(self, name: str, file: str, blob: bytes) -> None:
        """Write a file of an unfinished snapshot."""
        path = f"{self._aside(name)}/{file}"
        with translated(path, "writing"):
            if self._renames:
                with Path(path).open("xb") as opened:
                    opened.write(blob)
                    opened.flush()
                    os.fsync(opened.fileno())
            else:
                self._files.pipe_file(path, blob)

    def publish(self, name: str, manifest: bytes) -> None:
        """Write the manifest. The snapshot exists from then on, and not before."""
        self.write(name, manifests.FILE, manifest)
        if self._renames:
            aside, path = Path(self._aside(name)), Path(self._root, name)
            with translated(str(path), "renaming"):
                _sync_folder(aside)
                aside.rename(path)
                _sync_folder(path.parent)

    def abandon(self, name: str) -> None:
        """Remove the files of an unfinished snapshot."""
        self._remove_folder(self._aside(name))

    def remove(self, name: str) -> None:
        """Remove a snapshot: its manifest first, so that it ceases to exist at once, then its
        files.
        """
        path = f"{self._root}/{name}"
        with translated(path, "removing"):
            if self._renames:
                aside = Path(self._aside(name))
                Path(path).rename(aside)
                _sync_folder(aside.parent)
                path = str(aside)
            else:
                self._files.rm_file(f"{path}/{manifests.FILE}")
        self._remove_folder(path)

    def half_written(self) -> list[Leftover]:
        """Return the leftovers: folders that are neither a snapshot nor of another program."""
        found = []
        for folder in self._folders():
            aside = folder.startswith(_ASIDE) and manifests.model_of(folder[len(_ASIDE) :])
            lacking = manifests.model_of(folder) and manifests.FILE not in self.sizes(folder)
            if aside or lacking:
                found.append(Leftover(folder, self._changed_ms(f"{self._root}/{folder}")))
        return found

    def clear(self, leftover: Leftover) -> None:
        """Remove the result of `half_written`."""
        self._remove_folder(f"{self._root}/{leftover.folder}")

    def _aside(self, name: str) -> str:
        return f"{self._root}/{_ASIDE if self._renames else ''}{name}"

    def _folders(self) -> list[str]:
        found = self._listed(self._root)
        return sorted({_last(each) for each in found if each["type"] == "directory"})

    def _listed(self, path: str) -> list[dict[str, Any]]:
        with translated(path, "listing"):
            try:
                return list(self._files.ls(path, detail=True))
            except FileNotFoundError:
                return []

    def _changed_ms(self, path: str) -> int | None:
        with translated(path, "reading the times of"):
            inside = [each["name"] for each in self._listed(path)]
            try:
                times = [self._files.modified(each) for each in inside or [path]]
            except (NotImplementedError, FileNotFoundError):
                return None
        return int(1000 * max(each.timestamp() for each in times))

    def _remove_folder(self, path: str) -> None:
        with translated(path, "removing"):
            if self._renames:
                shutil.rmtree(path, ignore_errors=True)
            else:
                try:
                    self._files.rm(path, recursive=True)
                except FileNotFoundError:
                    return


def _last(entry: dict[str, Any]) -> str:
    return str(entry["name"]).rstrip("/").rpartition("/")[2]


def _sync_folder(path: Path) -> None:
    """Make the names in a folder durable, so that they survive a power failure."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


@contextmanager
def translated(path: str, doing: str) -> Iterator[None]:
    """Raise StorageFailed for any error of a storage. `doing`: the operation, as "reading"."""
    try:
        yield
    except SnapshotError:
        raise
    except ImportError as error:
        raise StorageFailed(
            f"{path}: expected the package for such URLs, got {error}; "
            "for s3://: pip install 'headrace[s3]'"
        ) from error
    except Exception as error:  # each kind of storage has its own errors
        message = str(error) or type(error).__name__
        raise StorageFailed(f"{doing} {path}: {message}") from error
