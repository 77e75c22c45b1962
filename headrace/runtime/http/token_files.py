"""Reads files of tokens again when they change, so that a token is replaced without a restart.

A file is looked at every two seconds. A secret of Kubernetes is a symbolic link that is replaced,
which changes the number of the file (inode). A file that is missing or wrong changes nothing: the
tokens of before stay valid, and a warning says why.

A token keeps its place for the life of the process, because requests under way know their client by
it. Places of removed tokens admit no request.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from headrace.runtime.background_thread import RepeatingThread
from headrace.runtime.http.bearer_tokens import Tokens
from headrace.runtime.http.http_errors import BadTokens
from headrace.runtime.http.token_grants import TokenGrant, TokenLimits, read_grants

log = logging.getLogger(__name__)

LOOK_S = 2.0


class TokenSource(NamedTuple):
    """Tokens of a variable of the environment, and of a file."""

    fixed: tuple[TokenGrant, ...] = ()
    file: Path | None = None

    def read(self) -> list[TokenGrant]:
        """Return all tokens with their limits. Raises BadTokens."""
        return [*self.fixed, *(read_grants(self.file) if self.file is not None else ())]

    def state(self) -> tuple[int, int, int] | None:
        """Return a value that changes with the file; None while it is missing."""
        if self.file is None:
            return None
        try:
            found = self.file.stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size


class RereadTokens:
    """The tokens and limits of a server, kept equal to a file."""

    def __init__(
        self,
        source: TokenSource,
        tokens: Tokens,
        limits: TokenLimits,
        check: Callable[[Sequence[TokenGrant]], object] = lambda _: None,
    ) -> None:
        """check: raises BadTokens for grants that this server does not take."""
        self._source, self._tokens, self._limits = source, tokens, limits
        self._check, self._state = check, source.state()

    def reread(self) -> None:
        """Read the file if it has changed."""
        state = self._source.state()
        if state == self._state:
            return
        self._state = state
        try:
            grants = self._source.read()
            self._check(grants)
            texts = [each.token for each in grants]
            Tokens(texts)  # refuses a wrong one before anything has changed
            self._limits.renew(grants)  # first: a new token must find its limits
            self._tokens.renew(texts)
        except BadTokens as error:
            log.warning("tokens stay as they were: %s", error)
        else:
            log.info("read %s again: %d tokens are valid", self._source.file, len(grants))


@contextmanager
def rereading(*files: RereadTokens, look_s: float = LOOK_S) -> Iterator[None]:
    """Read files that change again, in a thread, until the block ends."""

    def reread() -> None:
        for each in files:
            each.reread()

    with RepeatingThread(reread, look_s, "tokens"):
        yield
