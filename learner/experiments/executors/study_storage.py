"""Opens the storage of a shared study: a journal file, or a database that SQLAlchemy opens.

A journal file is the choice for a disk that machines share: Optuna locks it by a symbolic link,
which NFS keeps. SQLite's locks do not work on NFS, so a SQLite file suits the processes of one
machine. A lock of a journal file whose process was killed is broken after ten seconds.
"""

from __future__ import annotations

import fcntl
import json
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_exponential_jitter

from headrace.learner.errors import LearnerError
from headrace.learner.experiments.suggestions import MissingOptuna

if TYPE_CHECKING:
    from collections.abc import Callable

_LOCK_S = 10
"""After which a lock of a journal file is broken."""
_SQLITE_LOCK_S = 60
"""For which a process waits for SQLite's lock; five seconds by default are too few."""
_PATIENCE_S = 60.0
_OPENING_S = 10.0


class BadStorage(LearnerError):
    """The storage of a shared study cannot be opened or reached."""


class StudyAddress(NamedTuple):
    """The argument of `--storage`."""

    text: str

    @property
    def is_database(self) -> bool:
        """Whether it is a URL, not the path of a journal file."""
        return "://" in self.text

    @property
    def shown(self) -> str:
        """The text without a password."""
        head, separator, tail = self.text.partition("://")
        login, at, place = tail.rpartition("@")
        if not at:
            return self.text
        user, colon, _ = login.partition(":")
        return f"{head}{separator}{user}{':***' if colon else ''}@{place}"

    def bad(self, got: object) -> BadStorage:
        """Return the error of a storage that cannot be used."""
        return BadStorage(
            f"--storage {self.shown}: expected the path of a journal file, or a URL of a database "
            f"such as sqlite:///search.db, got {got}"
        )


def open_storage(address: StudyAddress) -> Any:
    """Return Optuna's storage. Raises MissingOptuna, BadStorage."""
    try:
        import optuna
    except ImportError as error:
        raise MissingOptuna(
            "--storage: expected the package optuna, got none: pip install 'headrace[optuna]'"
        ) from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return _database(address) if address.is_database else _journal(address)


def _journal(address: StudyAddress) -> Any:
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock

    path = Path(address.text).expanduser()
    if path.is_dir() or not path.parent.is_dir():
        found = "a folder" if path.is_dir() else f"{path.parent}, which is no folder"
        raise address.bad(found)
    if path.exists():
        try:
            with path.open("rb") as file:
                known = "op_code" in json.loads(file.readline() or b'{"op_code": 0}')
        except (OSError, ValueError) as error:
            raise address.bad(f"another file: {error}") from error
        if not known:
            raise address.bad("another file")
    lock = JournalFileSymlinkLock(str(path), grace_period=_LOCK_S)
    try:
        return JournalStorage(JournalFileBackend(str(path), lock_obj=lock))
    except (OSError, ValueError, KeyError) as error:
        raise address.bad(f"one that cannot be read: {error!r}") from error


def _database(address: StudyAddress) -> Any:
    options: dict[str, Any] = {"pool_pre_ping": True}
    with ExitStack() as creating:
        if address.text.startswith("sqlite"):
            path = address.text.partition(":///")[2].partition("?")[0]
            if path in ("", ":memory:"):
                raise address.bad("a database in memory, which processes do not share")
            if not Path(path).parent.is_dir():
                raise address.bad(f"{Path(path).parent}, which is no folder")
            options["connect_args"] = {"timeout": _SQLITE_LOCK_S}
            # two processes that create the tables at once would fail
            lock = creating.enter_context(Path(f"{path}.lock").open("w"))
            fcntl.flock(lock, fcntl.LOCK_EX)
        return _created(address, options)


def _created(address: StudyAddress, options: dict[str, Any]) -> Any:
    from optuna.storages import RDBStorage, get_storage
    from sqlalchemy.exc import ArgumentError, NoSuchModuleError

    try:
        return get_storage(patiently(address, RDBStorage, address.text, options, for_s=_OPENING_S))
    except (ArgumentError, NoSuchModuleError, ImportError, RuntimeError, ValueError) as error:
        raise address.bad(str(error).splitlines()[0]) from error


def patiently(
    address: StudyAddress,
    call: Callable[..., Any],
    *arguments: Any,
    for_s: float = _PATIENCE_S,
    **keywords: Any,
) -> Any:
    """Call, again if the storage is out of reach. Raises BadStorage after that time."""
    from optuna.exceptions import StorageInternalError
    from sqlalchemy.exc import DBAPIError

    def is_passing(error: BaseException) -> bool:
        return isinstance(error, StorageInternalError | DBAPIError)

    tries = Retrying(
        retry=retry_if_exception(is_passing),
        stop=stop_after_delay(for_s),
        wait=wait_exponential_jitter(multiplier=0.05, max=5.0),
        reraise=True,
    )
    try:
        return tries(call, *arguments, **keywords)
    except (StorageInternalError, DBAPIError) as error:
        cause = error.__cause__ or error
        raise address.bad(f"no answer for {for_s:g} s: {str(cause).splitlines()[0]}") from error
