"""Names that stand for models: `production`, `shadow`, or what an operator likes.

Requests name an alias, so that which model answers is the operator's choice and not the callers'.
Which alias is which model is one immutable table; a switch puts another in its place. So a request
sees the table before or after, never half of a switch. The model that an alias was before is kept
with it: `revert` goes back to it, and again forth.

With a file the table outlives the server. It is written whole, beside itself, and moved to its
place before the switch takes effect: a server killed in between starts with one or the other.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import threading
from typing import TYPE_CHECKING

import msgspec

from headrace.serving.errors import BadAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

log = logging.getLogger(__name__)

SHADOW = "shadow"
"""An alias whose name begins with it is never the answer: its model scores what others answer."""
_NAME = re.compile(r"[a-z0-9_-]{1,64}")


class Alias(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a name stands for."""

    model: str
    previous: str = ""
    """The model that it was before; empty if there was none."""
    switched_ms: int = 0
    """When it became what it is, Unix time; 0: it was so from the start."""


_decode = msgspec.json.Decoder(dict[str, Alias]).decode


class Aliases:
    """The aliases of one server."""

    def __init__(
        self,
        models: Iterable[str],
        first: Mapping[str, str],
        now_ms: Callable[[], int],
        file: Path | None = None,
    ) -> None:
        """Begin with `first`, alias -> model; what a `file` has of these names goes before it.

        Raises BadAlias, also for a file that cannot be read.
        """
        self._models, self._now_ms, self._file = frozenset(models), now_ms, file
        self._lock = threading.Lock()
        table = {alias: Alias(model) for alias, model in first.items()}
        for alias, known in table.items():
            self._check(alias, known.model)
        kept = {} if file is None else _read(file)
        for alias, known in kept.items():
            if known.model in self._models:
                table[alias] = known
            else:
                log.warning("alias %s was %s, which is not served here", alias, known.model)
        self._table: Mapping[str, Alias] = table

    @property
    def table(self) -> Mapping[str, Alias]:
        """What every alias stands for, as of one moment."""
        return self._table

    def switch(self, alias: str, model: str, expected: str | None = None) -> Alias:
        """Let an alias be a model; return what it is now. Raises BadAlias.

        `expected`: refuse unless the alias is that model now, so that of two who switch one learns
        that there was another.
        """
        self._check(alias, model)
        with self._changing():
            now = self.table.get(alias)
            if expected is not None and (now.model if now else "") != expected:
                found = now.model if now else "nothing"
                raise BadAlias(f"alias {alias}: expected it to be {expected}, found {found}")
            if now is not None and now.model == model:
                return now
            made = Alias(model, now.model if now else "", self._now_ms())
            self._put({**self.table, alias: made})
        log.info("alias %s is %s now, and was %s", alias, model, made.previous or "nothing")
        return made

    def revert(self, alias: str) -> Alias:
        """Let an alias be the model that it was before. Raises BadAlias if there was none."""
        now = self.table.get(alias)
        if now is None or not now.previous:
            raise BadAlias(f"alias {alias}: expected one that was switched, found no model before")
        return self.switch(alias, now.previous, now.model)

    def remove(self, alias: str) -> None:
        """Take an alias away. Raises BadAlias if there is none."""
        with self._changing():
            table = self.table
            if alias not in table:
                known = ", ".join(sorted(table)) or "none"
                raise BadAlias(f"alias {alias}: expected one of those there are ({known})")
            self._put({name: each for name, each in table.items() if name != alias})
        log.info("alias %s is no more", alias)

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        """Be the only one who changes the table, as long as this lasts."""
        with self._lock:
            yield

    def _put(self, table: Mapping[str, Alias]) -> None:
        if self._file is not None:
            beside = self._file.with_name(f"{self._file.name}.new")
            try:
                with beside.open("wb") as opened:
                    opened.write(msgspec.json.format(msgspec.json.encode(table)))
                    opened.flush()
                    os.fsync(opened.fileno())
                beside.replace(self._file)
            except OSError as error:
                raise BadAlias(
                    f"expected to write {self._file}, found: {error}; nothing was switched"
                ) from error
        self._table = table

    def _check(self, alias: str, model: str) -> None:
        if not _NAME.fullmatch(alias):
            raise BadAlias(f"expected an alias of a-z, 0-9, _ and -, found {alias!r}")
        if alias in self._models:
            raise BadAlias(f"expected an alias, found the name of a model: {alias}")
        if model not in self._models:
            served = ", ".join(sorted(self._models))
            raise BadAlias(f"alias {alias}: expected one of the models {served}, found {model}")


def _read(file: Path) -> dict[str, Alias]:
    try:
        content = file.read_bytes()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise BadAlias(f"expected to read aliases from {file}, found: {error}") from error
    try:
        return _decode(content)
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise BadAlias(f"{file}: expected aliases as they were written, found: {error}") from error
