"""The data files of a fit: found by a path or URL, and fetched to this machine one at a time.

A local file is read in place. Any other file is first copied to the temporary folder (TMPDIR), as
Parquet is read from its end and progress counts bytes. The copy is removed once it is read, so a
fit needs disk space for one file, not for all data.

*Refused:* the `simplecache` of fsspec. It names its copies by a hash, from which the format of a
file is unknown, and it keeps them until the process ends.
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import fsspec
from fsspec import AbstractFileSystem
from fsspec.implementations.local import LocalFileSystem

from headrace.ingest.features.spec_text import SpecError
from headrace.learner.batch.sources import UnreadableData


class DataFile(NamedTuple):
    """One file of the data."""

    url: str
    size: int
    """Bytes; 0 if its server does not state them."""
    files: AbstractFileSystem | None = None
    """The file system that has it; None: it is a local file."""
    path: str = ""
    """Its path there."""

    @contextmanager
    def local(self) -> Iterator[Path]:
        """Yield the file, or its copy for as long as the context lasts. Raises UnreadableData."""
        if self.files is None:
            yield Path(self.url)
            return
        with tempfile.TemporaryDirectory(prefix="headrace-fit-") as folder:
            copy = Path(folder, self.path.rpartition("/")[2].partition("?")[0])
            with readable(self.url):
                self.files.get_file(self.path, str(copy))
            try:
                yield copy
            except SpecError as error:
                raise SpecError(str(error).replace(str(copy), self.url)) from error


def data_files(url: str) -> list[DataFile]:
    """Return the files of a path or URL, with * and **, by name. Raises UnreadableData."""
    with readable(url):
        files, path = fsspec.core.url_to_fs(url)
        found = sorted(files.glob(path)) if "*" in path else [path]
        every = [files.info(each) for each in found]
    local = isinstance(files, LocalFileSystem)
    data = [
        DataFile(path, int(each["size"] or 0))
        if local
        else DataFile(files.unstrip_protocol(path), int(each["size"] or 0), files, path)
        for path, each in zip(found, every, strict=True)
        if each["type"] == "file"
    ]
    if not data:
        folder = every and f"a folder. Name its files, as in {url.rstrip('/')}/*.parquet"
        raise UnreadableData(
            f"--data: expected files at {url}, got "
            f"{folder or 'none. Correct the path; quote it in a shell if it contains *'}"
        )
    return data


@contextmanager
def first_file(url: str) -> Iterator[Path]:
    """Yield the first file of a path or URL, or its copy. Raises UnreadableData."""
    with data_files(url)[0].local() as path:
        yield path


@contextmanager
def readable(url: str) -> Iterator[None]:
    """Raise UnreadableData for any error of a storage: each kind of storage has its own."""
    try:
        yield
    except UnreadableData:
        raise
    except ImportError as error:
        raise UnreadableData(
            f"--data: expected an installed package for {url}, got: {error}. Install it with pip; "
            "for s3://, run pip install 'headrace[s3]'"
        ) from error
    except FileNotFoundError as error:
        cause = f": {error.__cause__}" if error.__cause__ else ""
        raise UnreadableData(
            f"--data: expected files at {url}, got none{cause}. Correct the path"
        ) from error
    except Exception as error:
        reason = str(error) or type(error).__name__
        raise UnreadableData(
            f"--data: expected readable files at {url}, got: {reason}. Correct the URL, the "
            "network, or the credentials of the storage"
        ) from error
