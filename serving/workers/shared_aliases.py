"""Shares the aliases between worker processes through a mailbox.

The worker that receives a switch writes the whole table at once, under a lock. The next request of
any worker sees it, so a switch is as atomic for several processes as for one.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import msgspec

from headrace.serving.errors import BadAlias
from headrace.serving.models.aliases import Alias, Aliases
from headrace.serving.workers.mailbox import Mailbox, MessageTooLong

ALIASES_BYTES = 256 << 10
"""Size of the mailbox: more than a thousand aliases."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(dict[str, Alias]).decode


def tell_aliases(board: Mailbox, table: Mapping[str, Alias]) -> None:
    """Write the table of aliases. Raises BadAlias if it is too large."""
    try:
        board.write(_encode(table))
    except MessageTooLong as error:
        raise BadAlias(f"expected fewer aliases, got {len(table)}: {error}") from error


class SharedAliases(Aliases):
    """The aliases of a server of several processes, for one of them."""

    def __init__(
        self, models: Iterable[str], board: Mailbox, now_ms: Callable[[], int], file: Path | None
    ) -> None:
        """board: the current table. file: written with every change."""
        super().__init__(models, {}, now_ms)
        self._file = file
        self._board = board
        self._seen: tuple[tuple[bytes, bytes] | None, Mapping[str, Alias]] = None, {}

    @property
    def table(self) -> Mapping[str, Alias]:
        """The current table: never changed, only replaced."""
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
            raise BadAlias(f"expected fewer aliases, got {len(table)}; no alias was changed")
        super()._put(table)
        tell_aliases(self._board, table)
