"""A library of server functions, run by an embedded Lua 5.1, the Lua of Redis and Valkey.

The library sees what a server shows it: `redis.register_function` while it is loaded, `redis.call`
and `redis.error_reply` while a function runs, and globals that it may neither add nor miss. Values
are converted by the rules of the server: a missing value is `false` in Lua, a list ends at its
first nil, a number loses its fraction. An error keeps the effects of the commands before it.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from lupa import lua51
from redis import ResponseError

from tests.embedded_valkey.keyspace import Keyspace

_GLOBALS = """
local call, register = ...
redis = {
  call = call,
  error_reply = function(text) return {err = text} end,
  register_function = function(named, callback)
    if callback then
      register(named, callback)
    else
      register(named.function_name, named.callback, unpack(named.flags or {}))
    end
  end,
}
setmetatable(_G, {
  __newindex = function() error('Attempt to modify a readonly table', 2) end,
  __index = function(_, name)
    error('Script attempted to access nonexistent global variable ' .. name, 2)
  end,
})
"""


class LuaFunction(NamedTuple):
    """One registered function."""

    callback: Any
    flags: frozenset[bytes]

    @property
    def read_only(self) -> bool:
        """Whether it may only read."""
        return b"no-writes" in self.flags

    @property
    def frees_memory(self) -> bool:
        """Whether a server at its memory limit runs it."""
        return self.read_only or b"allow-oom" in self.flags


class LuaFunctions:
    """The functions of one library. They run on one keyspace at a time."""

    def __init__(self, source: str) -> None:
        self._lua: Any = lua51.LuaRuntime(
            encoding=None, register_eval=False, register_builtins=False
        )
        self._functions: dict[bytes, LuaFunction] = {}
        self._execute: Callable[[Sequence[bytes]], Any] = _refuse_call
        self._lua.compile(_GLOBALS.encode())(self._call, self._register)
        shebang, _, code = source.partition("\n")
        if not shebang.startswith("#!lua name="):
            raise ValueError(f"expected '#!lua name=...' in the first line, got {shebang!r}")
        self._lua.compile(f"\n{code}".encode(), name=b"@user_function")()

    def get(self, name: bytes) -> LuaFunction:
        """Return a function. Raises ResponseError if the library lacks it."""
        if name not in self._functions:
            raise ResponseError("Function not found")
        return self._functions[name]

    def run(
        self,
        function: LuaFunction,
        keyspace: Keyspace,
        keys: Sequence[bytes],
        args: Sequence[bytes],
    ) -> Any:
        """Call a function and return its reply. Raises ResponseError."""
        self._execute = functools.partial(keyspace.execute, read_only=function.read_only)
        try:
            result = function.callback(self._lua.table_from(keys), self._lua.table_from(args))
        except lua51.LuaError as error:
            raise ResponseError(str(error)) from error
        finally:
            self._execute = _refuse_call
        return _reply(result)

    def _register(self, name: bytes, callback: Any, *flags: bytes) -> None:
        self._functions[name] = LuaFunction(callback, frozenset(flags))

    def _call(self, *words: bytes | float) -> Any:
        return self._value(self._execute([_word(word) for word in words]))

    def _value(self, reply: Any) -> Any:
        """Return a reply as Lua sees it."""
        if reply is None:
            return False
        if isinstance(reply, list):
            return self._lua.table_from([self._value(each) for each in reply])
        return reply


@functools.cache
def load_functions(source: str) -> LuaFunctions:
    """Return the functions of a library; all servers of this process share them."""
    return LuaFunctions(source)


def _refuse_call(words: Sequence[bytes]) -> Any:
    raise ResponseError(f"redis.call can only be called from a function, got {words!r}")


def _word(word: bytes | float) -> bytes:
    return word if isinstance(word, bytes) else b"%.17g" % word


def _reply(result: Any) -> Any:
    """Return the result of a function as a client receives it. Raises ResponseError."""
    if result is None or result is False:
        return None
    if isinstance(result, bytes):
        return result
    if isinstance(result, int | float):  # true is 1
        return int(result)
    if (text := result[b"err"]) is not None:
        raise ResponseError(text.decode())
    replies = []
    for place in range(1, len(result) + 1):
        if (each := result[place]) is None:
            break
        replies.append(_reply(each))
    return replies
