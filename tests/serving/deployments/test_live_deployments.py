"""A model that is deployed to a running server: loaded, answering, switched, and released."""

import gc
import json
import threading
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial

from prometheus_client import CollectorRegistry

from headrace.ingest.errors import KafkaUnreachable
from headrace.ingest.kafka.fakes import ListReader
from headrace.ingest.kafka.protocols import ReaderEvent, Record, Source
from headrace.learner.spec.model_spec import parse_spec
from headrace.serving.api.app import make_app
from headrace.serving.deployments.deployment_records import (
    DeploymentChange,
    alias_change,
    model_change,
)
from headrace.serving.deployments.deployment_status import DeploymentCollector
from headrace.serving.deployments.registered_model import RegisteredModel
from headrace.serving.deployments.topic_follower import DEPLOYMENTS_TOPIC, TopicFollower
from headrace.serving.models.aliases import Aliases
from headrace.serving.models.loading import ModelLoader, StoreModel
from headrace.serving.models.registry import ModelRegistry
from headrace.serving.replicas.follower import Following
from headrace.serving.replicas.replica_metrics import ReplicaCollector
from tests.serving.api.app_client import ask
from tests.serving.models.two_models import second
from tests.serving.served_models import Serving, eventually, memory_store, news

ONLY = Source(DEPLOYMENTS_TOPIC, 0)
BODY = {"candidates": [{"article_id": "hot"}]}


class Topic(ListReader):
    """A topic in memory, whose reader may lose its broker."""

    def __init__(self) -> None:
        super().__init__({ONLY: []})
        self.away, self._pause = False, threading.Event()

    def poll(self, timeout_s: float) -> list[ReaderEvent]:
        if self.away:
            raise KafkaUnreachable("expected a broker, got none")
        self._pause.wait(0.002)  # a thread that never waits would take the whole core
        return super().poll(timeout_s)

    def write(self, *changes: DeploymentChange) -> None:
        for each in changes:
            self.records[ONLY].append(Record(ONLY, self.bounds(ONLY)[1], 0, each.value, each.key))


class DeployingServer(Serving):
    """A server of `news` that follows a topic in memory."""

    def __init__(self) -> None:
        super().__init__(memory_store(news()))
        self.follow()
        self.stores = {"news-2": memory_store(second())}
        self.topic, self.closed = Topic(), threading.Event()
        aliases = Aliases(["news"], {"production": "news"}, self.clock)
        self.models = ModelRegistry([self.served], aliases)
        loader = ModelLoader(Following(poll_interval_ms=2), None, self.limits, CollectorRegistry())
        opening = partial(RegisteredModel, self.models, loader, self._open)
        fixed = {"news": news().text}
        self.deploying = TopicFollower(lambda: self.topic, opening, aliases, fixed)
        registry = CollectorRegistry()
        registry.register(DeploymentCollector(lambda: self.deploying.status))
        registry.register(ReplicaCollector(self.models, self.clock))
        self.registry = registry
        parts = replace(self.parts(self.models), deployments=lambda: self.deploying.status)
        self.__dict__["app"] = make_app(parts)

    def _open(self, text: str, stack: ExitStack) -> StoreModel:
        spec = parse_spec(text, "topic deployments")
        stack.callback(self.closed.set)
        return StoreModel(spec, self.stores[spec.name])

    def model_of(self, name: str) -> str | int:
        answer = ask(self, "POST", f"/v1/models/{name}:predict", json=BODY)
        return answer.json()["model"] if answer.status_code == 200 else answer.status_code

    def stage(self, name: str = "news-2") -> str | None:
        each = self.deploying.status.models.get(name)
        return None if each is None else each.stage


@contextmanager
def deploying() -> Iterator[DeployingServer]:
    server = DeployingServer()
    server.deploying.start()
    try:
        yield server
    finally:
        server.deploying.stop()


def test_a_deployed_model_answers_without_a_restart_and_is_released_afterwards() -> None:
    deploy = model_change("news-2", second().text)
    with deploying() as server:
        eventually(lambda: server.deploying.status.settled)
        assert server.model_of("news-2") == 404
        server.topic.write(deploy, alias_change("production", "news-2"))
        eventually(lambda: server.model_of("production") == "news-2")
        assert server.model_of("news-2") == "news-2"
        ready = ask(server, "GET", "/health/ready").json()
        assert ready["deployments"]["models"]["news-2"]["stage"] == "ready"
        assert "/v1/models/news-2:predict" in ask(server, "GET", "/openapi.json").json()["paths"]
        labels = {"model": "news-2", "stage": "ready"}
        sample = server.registry.get_sample_value
        assert sample("headrace_server_deployed_model", labels) == 1
        assert sample("headrace_server_complete", {"model": "news-2"}) == 1

        loaded = server.models.find("news-2").served
        rows, predictor = weakref.ref(loaded.rows), weakref.ref(loaded.predictor)
        del loaded
        server.topic.write(alias_change("production", None), model_change("news-2", None))
        eventually(server.closed.is_set)
        eventually(lambda: server.stage() is None)
        assert (server.model_of("production"), server.model_of("news-2")) == ("news", 404)
        assert (
            "/v1/models/news-2:predict" not in ask(server, "GET", "/openapi.json").json()["paths"]
        )
        assert sample("headrace_server_complete", {"model": "news-2"}) is None

        def released() -> bool:
            gc.collect()
            return rows() is None and predictor() is None

        eventually(released)


def test_a_model_that_cannot_be_loaded_leaves_the_server_ready() -> None:
    with deploying() as server:
        server.topic.write(
            model_change("unknown", second().text.replace("news-2", "unknown")),
            model_change("broken", "[model"),
            model_change("other", second().text),
            alias_change("production", "unknown"),
        )
        eventually(lambda: server.deploying.status.settled)
        answer = ask(server, "GET", "/health/ready")
        assert answer.status_code == 200, answer.text
        models = answer.json()["deployments"]["models"]
        assert {each["stage"] for each in models.values()} == {"failed"}
        assert models["other"]["reason"] == "model/other: expected a spec of other, got news-2"
        assert json.dumps(models).count("expected") >= 2
        assert server.model_of("production") == "news"
        count = server.registry.get_sample_value(
            "headrace_server_deployments_waiting", {"kind": "failed"}
        )
        assert count == 3


def test_a_model_answers_on_while_kafka_is_away() -> None:
    with deploying() as server:
        server.topic.write(model_change("news-2", second().text), alias_change("x", "news-2"))
        eventually(lambda: server.model_of("x") == "news-2")
        server.topic.away = True
        assert server.model_of("x") == "news-2"
        assert ask(server, "GET", "/health/ready").status_code == 200
