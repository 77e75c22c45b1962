"""Aliases: names such as `production` or `shadow` that operators point at models.

Clients request an alias, so the operator chooses the model that answers, not the client. The
aliases are one immutable table, and a switch replaces the table. A request therefore sees the
state before or after a switch, never half of it. Each alias keeps its previous model, so `revert`
goes back, and a second `revert` goes forth again.

An alias may split its traffic among several models (`traffic_split`). The split is one string in
the place of the model's name. So a split is switched, reverted, expected and kept as a model is,
and tables of earlier versions, whose aliases have one model each, are read as they are. An earlier
version that reads a table with a split ignores the alias, and logs that its model is not served.

With a file the table survives the server. The table is written to a second file, which then
replaces the first, before the switch takes effect. A server killed in between starts with the old
or the new table.
"""

import contextlib
import logging
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import msgspec

from headrace.runtime.undecodable import UNDECODABLE
from headrace.serving.errors import BadAlias
from headrace.serving.models.traffic_split import canonical, models_of, split_of

log = logging.getLogger(__name__)

SHADOW = "shadow"
"""Prefix of shadow aliases. Their models never answer; they score what another model answered."""
_NAME = re.compile(r"[a-z0-9_-]{1,64}")


class Alias(msgspec.Struct, frozen=True, omit_defaults=True):
    """The model, or the split of traffic, behind a name."""

    model: str
    """A model, or models with weights such as `news=95 news-2=5`."""
    previous: str = ""
    """The previous model or split; empty if the alias was never switched."""
    switched_ms: int = 0
    """Time of the last switch, Unix time; 0 if the alias was never switched."""


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
        """Begin with `first`, alias -> model. Entries of `file` take precedence.

        Raises BadAlias, also for a file that cannot be read, or without a folder.
        """
        self._models, self._now_ms, self._file = frozenset(models), now_ms, file
        self.first = dict(first)
        """Alias -> model, at the start."""
        self._lock = threading.Lock()
        table = {alias: Alias(self._checked(alias, model)) for alias, model in first.items()}
        kept = {} if file is None else _read(file)
        for alias, known in kept.items():
            try:
                self._check_models(alias, known.model)
                table[alias] = known
            except BadAlias as error:
                log.warning("ignored an alias of %s: %s", file, error)
        self._table: Mapping[str, Alias] = table

    @property
    def table(self) -> Mapping[str, Alias]:
        """The current table: never changed, only replaced."""
        return self._table

    def add_model(self, model: str) -> None:
        """Let aliases point at one more model. Raises BadAlias if an alias has its name."""
        with self._changing():
            if model in self.table:
                raise BadAlias(f"expected the name of a model, got that of an alias: {model}")
            self._models |= {model}

    def remove_model(self, model: str) -> None:
        """Refuse this model from now on. Raises BadAlias if an alias points at it."""
        with self._changing():
            for alias, now in self.table.items():
                if model in models_of(now.model):
                    raise BadAlias(f"expected a model without aliases, got {model} of {alias}")
            self._models -= {model}

    def switch(self, alias: str, model: str, expected: str | None = None) -> Alias:
        """Point an alias at a model or a split; return the alias. Raises BadAlias.

        expected: refuse unless the alias is this now (empty: unless it does not exist). If two
        operators switch at the same time, the second gets an error.
        """
        model = self._checked(alias, model)
        if expected:
            expected = canonical(expected)
        with self._changing():
            now = self.table.get(alias)
            if expected is not None and (now.model if now else "") != expected:
                found = now.model if now else "no alias of this name"
                raise BadAlias(f"alias {alias}: expected {expected or 'no alias'}, got {found}")
            if now is not None and now.model == model:
                return now
            switched = Alias(model, now.model if now else "", self._now_ms())
            self._put({**self.table, alias: switched})
        log.info("alias %s: switched from %s to %s", alias, switched.previous or "no model", model)
        return switched

    def revert(self, alias: str) -> Alias:
        """Point an alias at its previous model. Raises BadAlias if it has none."""
        now = self.table.get(alias)
        if now is None or not now.previous:
            raise BadAlias(
                f"alias {alias}: expected an alias with a previous model, got one without"
            )
        return self.switch(alias, now.previous, now.model)

    def remove(self, alias: str) -> None:
        """Remove an alias. Raises BadAlias if it does not exist."""
        with self._changing():
            table = self.table
            if alias not in table:
                known = ", ".join(sorted(table)) or "none"
                raise BadAlias(f"alias {alias}: expected one of: {known}")
            self._put({name: each for name, each in table.items() if name != alias})
        log.info("alias %s: removed", alias)

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        """Exclude other changes of the table."""
        with self._lock:
            yield

    def _put(self, table: Mapping[str, Alias]) -> None:
        if self._file is not None:
            temporary = self._file.with_name(f"{self._file.name}.new")
            try:
                with temporary.open("wb") as opened:
                    opened.write(msgspec.json.format(msgspec.json.encode(table)))
                    opened.flush()
                    os.fsync(opened.fileno())
                temporary.replace(self._file)
            except OSError as error:
                raise BadAlias(
                    f"expected to write {self._file}, got: {error}; no alias was changed"
                ) from error
        self._table = table

    def _checked(self, alias: str, model: str) -> str:
        """Return the canonical form of a model or split. Raises BadAlias."""
        if not _NAME.fullmatch(alias):
            raise BadAlias(f"expected an alias of a-z, 0-9, _ and -, got {alias!r}")
        if alias in self._models:
            raise BadAlias(f"expected an alias, got the name of a model: {alias}")
        self._check_models(alias, model)
        return canonical(model)

    def _check_models(self, alias: str, model: str) -> None:
        split = split_of(model)
        if split is not None and alias.startswith(SHADOW):
            raise BadAlias(f"alias {alias}: expected one model for a shadow, got {model}")
        for name in models_of(model):
            if name not in self._models:
                served = ", ".join(sorted(self._models))
                raise BadAlias(f"alias {alias}: expected one of the models {served}, got {name}")


def _read(file: Path) -> dict[str, Alias]:
    try:
        content = file.read_bytes()
    except FileNotFoundError:
        if not file.parent.is_dir():
            raise BadAlias(
                f"--aliases-file: expected a file in a folder that exists, got {file}: the first "
                "switch of an alias would fail"
            ) from None
        return {}
    except OSError as error:
        raise BadAlias(f"expected to read aliases from {file}, got: {error}") from error
    try:
        return _decode(content)
    except UNDECODABLE as error:
        raise BadAlias(f"{file}: expected aliases written by a server, got: {error}") from error
