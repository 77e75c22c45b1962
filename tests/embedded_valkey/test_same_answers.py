"""The embedded server answers as a real one: random commands, functions and values of Lua."""

import random
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from headrace.pserver.errors import StoreError
from headrace.pserver.redis_backend.node_connection import Call
from headrace.pserver.redis_backend.redis_store import open_store
from headrace.pserver.redis_backend.server_requirements import function_name
from tests.effort import seeds
from tests.embedded_valkey.server import EmbeddedValkey

KEEPERS = (b"one", b"two")
Words = tuple[bytes | str | int, ...]

PROBE = """#!lua name=headrace_probe
local results = {
  numbers = function() return {1, -2, 3.99, -3.99, true, false, 7} end,
  ends = function() return {1, nil, 3} end,
  nothing = function() return nil end,
  error = function() return redis.error_reply('LEASE of another') end,
  nested = function() return {{'a', {}}, {false, 'b'}} end,
  missing = function(keys) return {redis.call('HGET', keys[1], 'x') == false, 1} end,
  missing_many = function(keys)
    return {#redis.call('HMGET', keys[1], 'x', 'y'), redis.call('HMGET', keys[1], 'x', 'y')}
  end,
  number_word = function(keys)
    redis.call('HSET', keys[1], 'count', 12, 'half', 0.5)
    return redis.call('HGETALL', keys[1])
  end,
  kept = function(keys)
    redis.call('HSET', keys[1], 'kept', '1')
    redis.call('XADD', keys[1], '1-0', 'a', 'b')
    return 1
  end,
  global = function() return undefined_name end,
  set_global = function() new_name = 1 return 1 end,
}
redis.register_function('headrace_probe', function(keys, args) return results[args[1]](keys) end)
"""


class Twins:
    """A real server and an embedded one, which get the same commands."""

    def __init__(self, url: str, key: str) -> None:
        store = open_store(url, key)
        self.real, self.close = store.nodes, store.close
        self.embedded = EmbeddedValkey(lambda: 1_000)
        self.key = key.encode()

    def compare(self, *words: bytes | str | int) -> None:
        """Assert that both answer alike; of refusals, the kind and the first word count."""
        [found], [expected] = (
            nodes.run([Call(self.key, words)]) for nodes in (self.embedded, self.real)
        )
        assert _comparable(found) == _comparable(expected), words


def _comparable(reply: Any) -> Any:
    if isinstance(reply, StoreError):
        text = str(reply).partition(": ")[2].removeprefix("ERR ")
        return type(reply), text.partition(" ")[0]
    return reply


@pytest.fixture
def twins(valkey_node: str, fresh_name: Callable[[str], str]) -> Twins:
    twins = Twins(valkey_node, fresh_name("twins"))
    return twins


@pytest.mark.parametrize("seed", seeds(5))
def test_random_commands_get_the_answers_of_a_real_server(twins: Twins, seed: int) -> None:
    dice = random.Random(seed)
    with closing(twins):
        for _ in range(400):
            twins.compare(*_command(twins.key, dice))


def _command(prefix: bytes, dice: random.Random) -> Words:
    key = prefix + dice.choice((b":hash", b":hash", b":stream", b":stream", b":text"))
    names = [dice.choice((b"a", b"b", b"c", b"\x00\xff")) for _ in range(dice.randint(1, 3))]
    pairs = [word for name in names for word in (name, b"%d" % dice.randrange(9))]
    low, high = sorted(dice.choices(range(12), k=2))
    commands: list[Words] = [
        ("HSET", key, *pairs),
        ("HSET", key, *pairs[:-1]),
        ("HDEL", key, *names),
        ("HGET", key, names[0]),
        ("HMGET", key, *names),
        ("HLEN", key),
        ("HEXISTS", key, names[0]),
        ("XADD", key, f"{dice.randrange(40)}-0", *pairs),
        ("XADD", key, f"{dice.randrange(40)}-0", *pairs[:-1]),
        ("XRANGE", key, f"{low}-0", "+", "COUNT", dice.randint(1, 3)),
        ("XRANGE", key, f"{low}-0", f"{high}-0"),
        ("XRANGE", key, low, high),
        ("XRANGE", key, "-", "what"),
        ("XTRIM", key, "MINID", f"{low}-0"),
        ("GET", key),
        ("SET", prefix + b":text", names[0], *dice.choice(((), ("NX",), ("NX", "PX", 60_000)))),
        *[("DEL", key), ("UNLINK", key, key)][: dice.random() < 0.3],
    ]
    return dice.choice(commands)


@pytest.mark.parametrize("seed", seeds(5))
def test_random_calls_of_the_functions_get_the_answers_of_a_real_server(
    twins: Twins, seed: int
) -> None:
    dice = random.Random(seed)
    keys = [twins.key + name for name in (b":log", b":marks", b":rows:0", b":rows:1")]
    with closing(twins):
        for _ in range(400):
            name, count, arguments = _function(dice)
            of_bucket = keys[1:2] if count == 1 else keys[:count]
            command = "FCALL_RO" if name == "look" else "FCALL"
            twins.compare(command, function_name(name), count, *of_bucket, *arguments)
            twins.compare("HMGET", keys[1], "version", "nonce", "folds", "trimmed", "keeper", "t/0")
            twins.compare("HMGET", keys[1], "appended_bytes", "trimmed_bytes", "loading")
            twins.compare("XRANGE", keys[0], "-", "+")


def _function(dice: random.Random) -> tuple[str, int, Words]:
    """Return a function's name, the number of its keys, and arguments that often fit."""
    near = dice.randrange(5)
    nonce = b"%d" % dice.randrange(3)
    fence: Words = (dice.choice(KEEPERS), dice.randrange(3), near, nonce)
    token = dice.choice((b"x", b"y"))
    write: Words = (1, 0, 0, 1, b"row", b"value", b"gone")
    calls: list[tuple[str, int, Words]] = [
        ("create", 1, (nonce,)),
        *[("push", 2, (nonce, b"blob" * near, "t/0", near, near + 1))] * 4,
        ("push", 2, (nonce, b"", "t/0", near, near + 1, "t/1", 0, 1)),
        *[("claim", 1, (dice.choice(KEEPERS), 60_000))] * 2,
        ("release", 1, (dice.choice(KEEPERS),)),
        *[("fold", 4, (*fence, *write))] * 2,
        ("delete", 2, (*fence, b"new", b"ids")),
        *[("trim", 2, (*fence, near, dice.randrange(2)))] * 2,
        ("look", 4, (f"{near}-0", dice.randrange(3), 2, 1, b"row", b"none", b"gone")),
        *[("load_begin", 4, (token,)), ("load_end", 1, (token, near, nonce, "t/0", near))],
        ("load_rows", 4, (token, *write)),
        *[("drop", 4, ()) for _ in range(dice.random() < 0.2)],
    ]
    return dice.choice(calls)


@pytest.mark.parametrize(
    "case",
    [
        *("numbers", "ends", "nothing", "error", "nested", "missing", "missing_many"),
        *("number_word", "kept", "global", "set_global"),
    ],
)
def test_values_pass_between_lua_and_client_as_on_a_real_server(
    valkey_node: str, fresh_name: Callable[[str], str], case: str
) -> None:
    twins = Twins(valkey_node, fresh_name("probe"))
    with closing(twins):
        twins.real.run([Call(twins.key, ("FUNCTION", "LOAD", "REPLACE", PROBE))])
        twins.embedded.load(PROBE)
        twins.compare("FCALL", "headrace_probe", 1, twins.key, case)
        twins.compare("HGETALL", twins.key)
