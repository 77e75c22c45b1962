"""Requirements that a server must meet: the version of its functions, and no eviction."""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from headrace.deploy.local.services.valkey import ValkeyNode
from headrace.pserver import redis_backend
from headrace.pserver.errors import StoreError
from headrace.pserver.redis_backend.redis_store import RedisStore, StoreSettings, open_store
from headrace.pserver.redis_backend.server_requirements import LIBRARY_VERSION, check_functions
from headrace.pserver.store import BucketAnswer, LookResult, Shape
from tests.pserver.rows.entries import WIDTH, Pusher
from tests.running_server import running_server

SOURCE = Path(redis_backend.__path__[0], "functions.lua").read_text()
NUMBER = f"local LIBRARY_VERSION = {LIBRARY_VERSION}"
NEWER = SOURCE.replace(NUMBER, f"local LIBRARY_VERSION = {LIBRARY_VERSION + 1}")
VERSION_2 = """#!lua name=headrace
redis.register_function{function_name='headrace_push', callback=function() return 'version 2' end}
redis.register_function{function_name='headrace_version', callback=function() return 2 end,
  flags={'no-writes'}}
"""


@pytest.fixture(scope="module")
def own_server(stack_directory: Path) -> Iterator[ValkeyNode]:
    """A server of this module's own, because its functions and settings change."""
    node = ValkeyNode(stack_directory / "requirements", remove=stack_directory)
    with running_server(node):
        yield node


@pytest.fixture
def store(own_server: ValkeyNode, fresh_name: Callable[[str], str]) -> Iterator[RedisStore]:
    own_server.call("FUNCTION", "FLUSH", "SYNC")
    shape = Shape(fresh_name("required"), 1, WIDTH, "fingerprint", "spec")
    with closing(open_store(own_server.url, shape.model, StoreSettings(sub_hashes=4))) as store:
        store.create(shape)
        yield store


def loaded_version(own_server: ValkeyNode) -> int:
    return int(own_server.call("FCALL_RO", "headrace_version", "0"))


def test_a_server_without_the_command_for_functions_is_refused_with_the_remedy() -> None:
    def ask(place: tuple[str, int], *words: bytes | str | int) -> int:
        if words[0] == "FCALL_RO":
            raise StoreError("Function not found")
        raise StoreError(f"unknown command '{words[0]!r}', with args beginning with: 'LOAD' ")

    with pytest.raises(StoreError, match=r"h:1: unknown command .* Remove rename-command FUNCTION"):
        check_functions(ask, ("h", 1))


def test_the_client_and_the_functions_name_the_same_version() -> None:
    assert SOURCE.count(NUMBER) == 1


def test_newer_functions_are_refused_at_the_next_call_and_at_the_start_and_left_alone(
    own_server: ValkeyNode, store: RedisStore
) -> None:
    pusher = Pusher(0, 1)
    [before] = store.push([pusher.next()])
    own_server.call("FUNCTION", "LOAD", "REPLACE", NEWER)
    for call in (
        lambda: store.push([pusher.next()]),
        lambda: store.claim(0, "k", 1000),
        lambda: open_store(own_server.url, "m"),
    ):
        with pytest.raises(StoreError, match=f"got {LIBRARY_VERSION + 1} from .*newer headrace"):
            call()
    assert store.marks([0]) == [before]
    assert loaded_version(own_server) == LIBRARY_VERSION + 1, (
        "an older library replaced a newer one"
    )


def test_a_connected_process_replaces_older_functions_at_its_next_call(
    own_server: ValkeyNode, store: RedisStore
) -> None:
    own_server.call("FUNCTION", "LOAD", "REPLACE", VERSION_2)
    [answer] = store.push([Pusher(0, 1).next()])
    assert isinstance(answer, BucketAnswer)
    assert answer.version == 1
    assert loaded_version(own_server) == LIBRARY_VERSION


def test_reading_rows_goes_on_while_writers_are_upgraded(
    own_server: ValkeyNode, store: RedisStore
) -> None:
    store.push([Pusher(0, 1).next()])
    own_server.call("FUNCTION", "LOAD", "REPLACE", NEWER)
    [answer] = store.look({0: np.zeros(1, np.uint64)}, {0: 0}, 10)
    assert isinstance(answer, LookResult)
    assert [entry.version for entry in answer.polled.entries] == [1]


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize("name", ["create", "push", "claim", "fold", "trim", "load_rows", "drop"])
def test_a_process_of_functions_without_version_in_their_names_is_refused(
    own_server: ValkeyNode, name: str
) -> None:
    with pytest.raises(ValueError, match="newer headrace uses this store; upgrade this process"):
        own_server.call("FCALL", f"headrace_{name}", "1", "{m:0}:marks", "argument")


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl"])
@pytest.mark.parametrize("maxmemory", ["0", "1gb"])
def test_a_server_that_evicts_keys_is_refused_at_the_start(
    own_server: ValkeyNode, policy: str, maxmemory: str
) -> None:
    own_server.call("CONFIG", "SET", "maxmemory", maxmemory)
    own_server.call("CONFIG", "SET", "maxmemory-policy", policy)
    try:
        with pytest.raises(StoreError) as refusal:
            open_store(own_server.url, "m")
        open_store(own_server.url, "m", StoreSettings(read_only=True)).close()
    finally:
        own_server.call("CONFIG", "SET", "maxmemory-policy", "noeviction")
        own_server.call("CONFIG", "SET", "maxmemory", "0")
    message = str(refusal.value)
    assert (
        f"expected maxmemory-policy noeviction, got {policy} from {own_server.address}" in message
    )
    assert "--redis / HEADRACE_REDIS" in message
    assert "CONFIG SET maxmemory-policy noeviction" in message
    open_store(own_server.url, "m").close()
