"""Errors of an outage keep no frame of the process, and with it no push and no copied rows."""

import traceback
from collections.abc import Iterator

import pytest

from headrace.pserver.errors import AccessRefused, StoreError, Unreachable
from headrace.pserver.redis_backend.address import RedisAddress
from headrace.pserver.redis_backend.commands import RedisCommands, checked
from headrace.pserver.redis_backend.node_connection import NodeConnections, WaitLimits
from headrace.pserver.replica.replica import Replica
from tests.kept_memory import OUTAGES, collector_off, kept_after


@pytest.fixture(autouse=True)
def _collector_off() -> Iterator[None]:
    with collector_off():
        yield


class Away:
    """Nodes and a store that do not answer."""

    def run(self, calls: object) -> list[object]:
        return [b"OK", Unreachable("no answer")]

    def poll(self, after: object, limit: int) -> list[Unreachable]:
        return [Unreachable("no answer")]


def test_commands_that_failed_keep_no_memory_of_their_callers() -> None:
    commands = RedisCommands(Away(), "model")  # type: ignore[arg-type]
    assert kept_after(lambda: commands.all([]), StoreError) == 0
    assert kept_after(lambda: checked(AccessRefused("no")), StoreError) == 0


def test_polls_that_failed_keep_no_memory_of_their_callers() -> None:
    replica = Replica.__new__(Replica)
    replica._store = Away()  # type: ignore[assignment]
    assert kept_after(lambda: replica._poll_one(0, 0, 1), StoreError) == 0


def test_a_node_that_stays_away_raises_an_error_whose_traceback_does_not_grow() -> None:
    node = NodeConnections(
        ("127.0.0.1", 1), RedisAddress((("127.0.0.1", 1),), cluster=True), WaitLimits()
    )
    lengths = []
    for _ in range(OUTAGES):
        node.failed(node._failure or Unreachable("no answer"))  # its pause begins again
        with pytest.raises(Unreachable) as raised:
            node.take()
        lengths.append(len(traceback.extract_tb(raised.value.__traceback__)))
    assert len(set(lengths)) == 1
