"""The deployment plan of servers, as laws over random topics and failures."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.pserver.errors import StoreError
from headrace.serving.deployments.deployed_models import RETRY_S, SETTLE_S, DeployedModels
from headrace.serving.deployments.deployment_records import (
    DeploymentChange,
    Deployments,
    alias_change,
    model_change,
)
from headrace.serving.models.aliases import Aliases
from headrace.serving.models.traffic_split import models_of
from tests.serving.served_models import Clock

FIXED = {"news": "the spec of news"}
FIRST = {"production": "news"}


class Rows:
    """Rows that a test completes."""

    def __init__(self) -> None:
        self.complete, self.failure = False, None
        self.copied, self.buckets, self.rows = 0, 4, 7

    @property
    def status(self) -> Rows:
        return self


class Host:
    """A process whose models are served, closed or refused."""

    def __init__(self) -> None:
        self.refused: dict[str, Exception] = {}
        self.opened: dict[str, Loaded] = {}
        self.served: set[str] = set()

    def open(self, name: str, spec: str) -> Loaded:
        if name in self.refused:
            raise self.refused[name]
        self.opened[name] = Loaded(self, name)
        return self.opened[name]


class Loaded:
    def __init__(self, host: Host, name: str) -> None:
        self.rows: Any = Rows()
        self.host, self.name = host, name

    def admit(self) -> None:
        assert self.host.opened[self.name] is self
        self.host.served.add(self.name)

    def withdraw(self) -> None:
        self.host.served.remove(self.name)

    def close(self) -> None:
        assert self.name not in self.host.served
        if self.host.opened.get(self.name) is self:
            del self.host.opened[self.name]


class Server:
    """A server whose loading thread runs when the test says."""

    def __init__(self) -> None:
        self.host, self.now_s = Host(), 0.0
        self.aliases = Aliases(FIXED, FIRST, Clock())
        self.queue: list[tuple[Future[Any], Callable[[], object]]] = []
        self.deployed = DeployedModels(
            self.host.open, self.aliases, FIXED, self._work, lambda: self.now_s
        )

    def _work(self, function: Callable[[], object]) -> Future[object]:
        future: Future[object] = Future()
        self.queue.append((future, function))
        return future

    def work(self) -> None:
        """Run the oldest function of the loading thread."""
        if self.queue:
            future, function = self.queue.pop(0)
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(function())
                except Exception as error:  # noqa: BLE001 - as an executor does
                    future.set_exception(error)

    def complete(self) -> None:
        for each in self.host.opened.values():
            each.rows.complete = True

    def read(self, *changes: DeploymentChange) -> Server:
        for each in changes:
            self.deployed.take(*each)
        self.deployed.reached_end()
        self.deployed.step()
        return self

    def settle(self) -> Server:
        for _ in range(12):
            self.work()
            self.complete()
            self.deployed.step()
            self.check()
        return self

    def check(self) -> None:
        """No alias points at a model that does not answer."""
        for alias in self.aliases.table.values():
            assert set(models_of(alias.model)) <= {*FIXED, *self.host.served}

    @property
    def table(self) -> dict[str, str]:
        return {name: alias.model for name, alias in self.aliases.table.items()}


NAMES = st.sampled_from(["a", "b", "c"])
TARGETS = st.sampled_from(["news", "a", "b", "a=95 b=5", "news=9 a=1", "c", "a=", "d"])
CHANGES = st.one_of(
    st.builds(model_change, NAMES, st.sampled_from(["one", "two", None])),
    st.builds(alias_change, st.sampled_from(["production", "x"]), st.one_of(TARGETS, st.none())),
)
STEPS = st.one_of(CHANGES, st.sampled_from(["step", "work", "complete", "again"]))


@given(st.lists(STEPS, max_size=30))
def test_an_alias_never_points_at_a_model_that_is_not_ready(steps: list[Any]) -> None:
    server, log = Server(), []
    server.deployed.reached_end()
    for each in steps:
        if isinstance(each, DeploymentChange):
            log.append(each)
            server.deployed.take(*each)
        elif each == "again":  # Kafka was away: the topic is read from its start
            server.deployed.begin()
            server.read(*log)
        else:
            {"step": server.deployed.step, "work": server.work, "complete": server.complete}[each]()
        server.check()


@given(st.lists(CHANGES, max_size=20), st.integers(0, 20))
def test_servers_that_read_the_topic_at_different_times_end_in_the_same_state(
    changes: list[DeploymentChange], restart: int
) -> None:
    late = Server().read(*changes).settle()
    early = Server().read(*changes[:restart]).settle().read(*changes[restart:]).settle()
    wanted = Deployments()
    for each in changes:
        wanted = wanted.after(*each)
    if late.deployed.status.waiting or early.deployed.status.waiting:
        return  # an alias keeps the target that it had, which differs
    assert early.table == late.table
    needed = {model for target in late.table.values() for model in models_of(target)}
    served = {*wanted.models} | (needed - {*FIXED})
    assert early.host.served == late.host.served == {*early.host.opened} == served
    assert not late.queue


def test_an_alias_is_switched_once_the_rows_of_its_models_are_complete() -> None:
    server = Server().read(model_change("a", "spec"), alias_change("production", "news=95 a=5"))
    assert server.table == {"production": "news"}
    server.work()
    server.deployed.step()
    status = server.deployed.status
    assert (status.settled, status.models["a"].reason) == (False, "0 of 4 buckets copied")
    assert status.waiting == {"production": "expected ready models, got a (loading)"}
    server.settle()
    assert server.table == {"production": "news=95 a=5"}
    assert server.deployed.status.settled


def test_a_model_that_cannot_be_loaded_is_reported_and_tried_again() -> None:
    server = Server()
    server.host.refused["a"] = StoreError("expected a model a, got none")
    server.read(model_change("a", "spec"), alias_change("production", "a")).settle()
    status = server.deployed.status
    assert status.settled
    assert (status.models["a"].stage, status.models["a"].reason) == (
        "failed",
        "expected a model a, got none",
    )
    assert server.table == {"production": "news"}
    del server.host.refused["a"]
    server.settle()
    assert server.table == {"production": "news"}, "tried again without a pause"
    server.now_s += RETRY_S
    for _ in range(3):
        server.deployed.step()
    status = server.deployed.status
    assert status.models["a"].stage == "failed", "an alert would end while it is tried again"
    server.settle()
    assert server.table == {"production": "a"}
    assert server.deployed.status.models["a"].stage == "ready"


def test_a_removed_alias_returns_to_the_model_of_its_flag() -> None:
    changes = model_change("a", "spec"), alias_change("production", "a"), alias_change("x", "a")
    server = Server().read(*changes).settle()
    assert server.table == {"production": "a", "x": "a"}
    server.read(alias_change("production", None), alias_change("x", None)).settle()
    assert server.table == {"production": "news"}


def test_a_model_of_a_flag_is_never_unloaded_and_keeps_its_spec() -> None:
    server = Server().read(model_change("news", "another spec")).settle()
    assert server.deployed.status.models["news"].reason.startswith("expected the spec with which")
    server.read(model_change("news", None), alias_change("production", "news")).settle()
    assert server.table == {"production": "news"}


def test_a_switch_by_http_holds_until_the_topic_changes() -> None:
    server = Server().read(alias_change("x", "news"), model_change("a", "spec")).settle()
    server.aliases.switch("x", "a")
    server.settle()
    assert server.table["x"] == "a"
    server.read(alias_change("x", "news=1 a=1")).settle()
    assert server.table["x"] == "a=1 news=1"


def test_a_server_is_ready_without_the_topic_after_a_while() -> None:
    server = Server()
    server.deployed.step()
    assert not server.deployed.status.settled
    server.now_s = SETTLE_S + 1
    server.deployed.step()
    assert server.deployed.status.settled


def test_a_model_that_is_removed_while_it_loads_leaves_nothing() -> None:
    server = Server().read(model_change("a", "spec"))
    future, function = server.queue.pop()
    assert future.set_running_or_notify_cancel()
    server.read(model_change("a", None))
    future.set_result(function())
    server.settle()
    assert (server.host.opened, server.deployed.status.models) == ({}, {})


@pytest.mark.parametrize("value", [b"{", b"[]", b'{"spec": 1}', b"\xff"])
def test_an_unreadable_record_changes_nothing(value: bytes) -> None:
    state = Deployments().after(*model_change("a", "spec"))
    assert state.after(b"model/a", value) == state
    assert state.after(b"alias/a", value) == state
    assert state.after(b"later/a", value) == state
    assert state.after(None, value) == state
