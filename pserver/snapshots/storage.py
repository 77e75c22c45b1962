"""Where snapshots lie: a folder, or whatever else fsspec can reach (s3://..., memory://).

A snapshot is a folder of its own, named by its time and model. In a file system it is written
aside, under a name that is no snapshot's, and renamed when all of it is on the disk. An object
store has no renaming, but each object appears whole or not at all; there the manifest is written
last. Either way: no manifest, no snapshot; and removing one begins with it.

What a killed writer or remover left stays until `half_written` names it to who prunes.
"""

from __future__ import annotations

import os
import shutil
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import fsspec
from fsspec.implementations.local import LocalFileSystem

from headrace.pserver.snapshots import manifest as manifests
from headrace.pserver.snapshots.snapshot_errors import SnapshotError, StorageFailed

if TYPE_CHECKING:
    from collections.abc import Iterator

_ASIDE = ".partial-"


class Leftover(NamedTuple):
    """What was begun and never finished, or what is left of a snapshot that was removed."""

    folder: str
    changed_ms: int | None
    """When anything in it was last written; None where the storage does not say."""


class SnapshotStorage:
    """The snapshots in one place. Safe for use from several threads."""

    def __init__(self, url: str) -> None:
        """`url`: a folder, or a URL that fsspec knows. Raises StorageFailed."""
        self.url = url
        with _translated(url, "opening"):
            # of its own: an instance that others share remembers listings, and settings that were
            # the environment's when it was made
            self._files, root = fsspec.core.url_to_fs(
                url, skip_instance_cache=True, use_listings_cache=False
            )
        self._root = root.rstrip("/")
        self._renames = isinstance(self._files, LocalFileSystem)

    def names(self) -> list[str]:
        """Return the names under which there may be a snapshot, the oldest first."""
        return sorted(name for name in self._folders() if manifests.model_of(name))

    def read(self, name: str, file: str) -> bytes | None:
        """Return a file of a snapshot, None if it is not there. Raises StorageFailed."""
        path = f"{self._root}/{name}/{file}"
        with _translated(path, "reading"):
            try:
                return bytes(self._files.cat_file(path))
            except FileNotFoundError:
                return None

    def sizes(self, name: str) -> dict[str, int]:
        """Return the files of a snapshot and their sizes in bytes."""
        return {_last(each): int(each["size"]) for each in self._listed(f"{self._root}/{name}")}

    def begin(self, name: str) -> None:
        """Begin to write a snapshot."""
        if self._renames:
            with _translated(self._aside(name), "making"):
                Path(self._aside(name)).mkdir(parents=True)

    def write(self, name: str, file: str, blob: bytes) -> None:
        """Write a file of a snapshot that was begun."""
        path = f"{self._aside(name)}/{file}"
        with _translated(path, "writing"):
            if self._renames:
                with Path(path).open("xb") as opened:
                    opened.write(blob)
                    opened.flush()
                    os.fsync(opened.fileno())
            else:
                self._files.pipe_file(path, blob)

    def publish(self, name: str, manifest: bytes) -> None:
        """Write the manifest; from then on, and not before, there is a snapshot."""
        self.write(name, manifests.FILE, manifest)
        if self._renames:
            aside, path = Path(self._aside(name)), Path(self._root, name)
            with _translated(str(path), "renaming"):
                _sync_folder(aside)
                aside.rename(path)
                _sync_folder(path.parent)

    def abandon(self, name: str) -> None:
        """Remove what was written of a snapshot that was begun and not published."""
        self._remove_folder(self._aside(name))

    def remove(self, name: str) -> None:
        """Remove a snapshot: at once it is none, then its files go."""
        path = f"{self._root}/{name}"
        with _translated(path, "removing"):
            if self._renames:
                aside = Path(self._aside(name))
                Path(path).rename(aside)
                _sync_folder(aside.parent)
                path = str(aside)
            else:
                self._files.rm_file(f"{path}/{manifests.FILE}")
        self._remove_folder(path)

    def half_written(self) -> list[Leftover]:
        """Return what is neither a snapshot nor anybody else's."""
        found = []
        for folder in self._folders():
            aside = folder.startswith(_ASIDE) and manifests.model_of(folder[len(_ASIDE) :])
            lacking = manifests.model_of(folder) and manifests.FILE not in self.sizes(folder)
            if aside or lacking:
                found.append(Leftover(folder, self._changed_ms(f"{self._root}/{folder}")))
        return found

    def clear(self, leftover: Leftover) -> None:
        """Remove what `half_written` named."""
        self._remove_folder(f"{self._root}/{leftover.folder}")

    def _aside(self, name: str) -> str:
        return f"{self._root}/{_ASIDE if self._renames else ''}{name}"

    def _folders(self) -> list[str]:
        found = self._listed(self._root)
        return sorted({_last(each) for each in found if each["type"] == "directory"})

    def _listed(self, path: str) -> list[dict[str, Any]]:
        with _translated(path, "listing"):
            try:
                return list(self._files.ls(path, detail=True))
            except FileNotFoundError:
                return []

    def _changed_ms(self, path: str) -> int | None:
        with _translated(path, "looking at"):
            inside = [each["name"] for each in self._listed(path)]
            try:
                times = [self._files.modified(each) for each in inside or [path]]
            except (NotImplementedError, FileNotFoundError):
                return None
        return int(1000 * max(each.timestamp() for each in times))

    def _remove_folder(self, path: str) -> None:
        with _translated(path, "removing"):
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
    """See that what was named in a folder is still there after the power fails."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


@contextmanager
def _translated(path: str, doing: str) -> Iterator[None]:
    try:
        yield
    except SnapshotError:
        raise
    except ImportError as error:
        raise StorageFailed(
            f"{path}: what reads such addresses is not installed ({error}); "
            "for s3://: pip install 'headrace[s3]'"
        ) from error
    except Exception as error:  # each kind of storage has errors of its own
        said = str(error) or type(error).__name__
        raise StorageFailed(f"{doing} {path}: {said}") from error
