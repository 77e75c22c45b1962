"""The server: takes the place of `ClusterClient` under a `RedisStore`."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from redis import ResponseError

from headrace.pserver import redis_backend
from headrace.pserver.redis_backend.error_translation import translated
from headrace.pserver.redis_backend.node_connection import Call
from tests.embedded_valkey.keyspace import Keyspace, Stream, Value
from tests.embedded_valkey.lua_functions import load_functions

LIBRARY = Path(redis_backend.__path__[0], "functions.lua").read_text()
_NAME = "embedded:0"
_FULL = "OOM command not allowed when used memory > 'maxmemory'."


class EmbeddedValkey:
    """One server that holds all keys."""

    def __init__(self, clock_ms: Callable[[], int], library: str | None = None) -> None:
        """`clock_ms` is the server's clock; `library`: its functions, if not functions.lua."""
        self.keyspace = Keyspace(clock_ms)
        self.load(library or LIBRARY)
        self._full = False

    def load(self, library: str) -> None:
        """Replace the functions."""
        self._functions = load_functions(library)

    def run(self, calls: Sequence[Call]) -> list[Any]:
        """See ClusterClient.run."""
        return [self._answer(call) for call in calls]

    def name_of(self, key: bytes) -> str:
        """See ClusterClient.name_of."""
        return _NAME

    def close(self) -> None:
        """See ClusterClient.close."""

    @contextmanager
    def at_memory_limit(self) -> Iterator[None]:
        """Refuse meanwhile what needs memory."""
        self._full = True
        try:
            yield
        finally:
            self._full = False

    def copy_of(self, keys: Iterable[bytes]) -> dict[bytes, Value]:
        """Return what these keys hold, as a replica that lags may have it."""
        held = self.keyspace.values
        return {key: _copied(held[key]) for key in keys if key in held}

    def put_back(self, keys: Iterable[bytes], values: Mapping[bytes, Value]) -> None:
        """Replace what these keys hold, as a failover that loses writes does."""
        for key in keys:
            self.keyspace.values.pop(key, None)
        self.keyspace.values.update({key: _copied(value) for key, value in values.items()})

    def _answer(self, call: Call) -> Any:
        words = [_encoded(word) for word in call.words]
        if call.tail_words:
            words += _words_of(call.tail)
        try:
            if words[0] in (b"FCALL", b"FCALL_RO"):
                return self._run_function(*words)
            return self.keyspace.execute(words)
        except ResponseError as error:
            return translated(error, _NAME)

    def _run_function(self, command: bytes, name: bytes, count: bytes, *words: bytes) -> Any:
        function = self._functions.get(name)
        if command == b"FCALL_RO" and not function.read_only:
            raise ResponseError("Can not execute a script with write flag using *_ro command.")
        if self._full and not function.frees_memory:
            raise ResponseError(_FULL)
        keys, arguments = words[: int(count)], words[int(count) :]
        return self._functions.run(function, self.keyspace, keys, arguments)


def _encoded(word: bytes | str | int) -> bytes:
    return word if isinstance(word, bytes) else str(word).encode()


def _words_of(tail: bytes) -> list[bytes]:
    """Return the words of arguments as they go on the wire: `$<length>`, then the word."""
    words, at = [], 0
    while at < len(tail):
        begin = tail.index(b"\r\n", at) + 2
        past = begin + int(tail[at + 1 : begin - 2])
        words.append(tail[begin:past])
        at = past + 2
    return words


def _copied(value: Value) -> Value:
    if isinstance(value, Stream):
        return value.copy()
    return value.copy() if isinstance(value, dict) else value
