"""The server is asked what it says of its model once it has what the rows have, or in the end."""

import threading

import pytest

from headrace.deploy.reports import observer
from headrace.deploy.reports.observer import ServerStatus, ask_caught_up, copied
from headrace.pserver.replica.replica import Replica
from headrace.pserver.store import Shape
from tests.pserver.laws.new_stores import new_store
from tests.pserver.rows.entries import WIDTH, Pusher

BUCKETS = 2
PUSHES = 5


@pytest.fixture(scope="module")
def rows() -> Replica:
    """Return a store of two buckets after three pushes to one and two to the other."""
    store, pushers = new_store(), [Pusher(bucket, BUCKETS) for bucket in range(BUCKETS)]
    assert store.shape() == Shape("m", BUCKETS, WIDTH, "fingerprint", "spec")
    for number in range(PUSHES):
        store.push([pushers[number % BUCKETS].next(1)])
    return copied(store)


def status_at(version: int) -> ServerStatus:
    return ServerStatus(rows=1, p50_ms=2.0, p99_ms=3.0, clicks=4, version=version)


def saying(
    monkeypatch: pytest.MonkeyPatch, *said: ServerStatus | None
) -> list[ServerStatus | None]:
    """A server that says this, one after another, the last for ever; returns what it said."""
    heard: list[ServerStatus | None] = []

    def ask(_address: str, _model: str, _timeout_s: float) -> ServerStatus | None:
        heard.append(said[min(len(heard), len(said) - 1)])
        return heard[-1]

    monkeypatch.setattr(observer, "ask_server", ask)
    return heard


def test_a_server_that_lags_is_queried_again(
    rows: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    behind, caught_up = status_at(PUSHES - 1), status_at(PUSHES)
    heard = saying(monkeypatch, behind, None, caught_up)

    assert ask_caught_up("http://server", "m", rows, threading.Event()) is caught_up
    assert heard == [behind, None, caught_up]


def test_a_server_that_keeps_lagging_is_reported_as_it_is_at_the_deadline_or_a_stop(
    rows: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    behind, stop = status_at(0), threading.Event()
    stop.set()
    assert len(saying(monkeypatch, behind)) == 0
    assert ask_caught_up("http://server", "m", rows, stop) is behind
    monkeypatch.setattr(observer, "CATCH_UP_S", 0.05)
    for said in (behind, None):
        saying(monkeypatch, said)
        assert ask_caught_up("http://server", "m", rows, threading.Event()) is said
