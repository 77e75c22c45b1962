"""Aliases that several processes share: what they are stands on a board that all of them read.

Whichever worker is asked to switch an alias writes the whole table at once, under a lock; the next
request of any worker sees it. So a switch is as atomic for several processes as it is for one.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import msgspec

from headrace.serving.errors import BadAlias
from headrace.serving.models import Alias, Aliases
from headrace.serving.workers.mailbox import MessageTooLong

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from headrace.serving.workers.mailbox import Mailbox

ALIASES_BYTES = 256 << 10
"""Of the board: more than a thousand aliases."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(dict[str, Alias]).decode


def tell_aliases(board: Mailbox, table: Mapping[str, Alias]) -> None:
    """Write what the aliases are. Raises BadAlias if they are too many."""
    try:
        board.write(_encode(table))
    except MessageTooLong as error:
        raise BadAlias(f"expected fewer aliases, found {len(table)}: {error}") from error


class SharedAliases(Aliases):
    """The aliases of a server of several processes, as one of them sees and changes them."""

    def __init__(
        self, models: Iterable[str], board: Mailbox, now_ms: Callable[[], int], file: Path | None
    ) -> None:
        """`board` has what the aliases are; a `file` is written with every change."""
        super().__init__(models, {}, now_ms)
        self._file = file
        self._board = board
        self._seen: tuple[tuple[bytes, bytes] | None, Mapping[str, Alias]] = None, {}

    @property
    def table(self) -> Mapping[str, Alias]:
        """What every alias stands for, as of one moment."""
        marks = self._board.marks()
        seen = self._seen
        if marks != seen[0]:
            message = self._board.read()
            if message is not None:
                self._seen = seen = marks, _decode(message.content)
        return seen[1]

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        with super()._changing(), self._board.lock():
            yield

    def _put(self, table: Mapping[str, Alias]) -> None:
        if len(_encode(table)) > ALIASES_BYTES:
            raise BadAlias(f"expected fewer aliases, found {len(table)}; nothing was switched")
        super()._put(table)
        tell_aliases(self._board, table)
