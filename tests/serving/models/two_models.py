"""A server of two models, and a writer that does not return."""

import threading
from collections.abc import Sequence
from dataclasses import replace

from headrace.ingest.kafka.fakes import ListWriter
from headrace.learner.models.factory import open_model
from headrace.learner.spec.model_spec import ModelSpec, parse_spec
from headrace.pserver.replica.replica import Replica
from headrace.runtime.http.bearer_tokens import Tokens
from headrace.runtime.http.token_grants import TokenGrant
from headrace.serving.api.app import make_app
from headrace.serving.api.request_metrics import RequestMetrics
from headrace.serving.models.aliases import Aliases
from headrace.serving.models.predictor import Predictor
from headrace.serving.models.registry import ModelRegistry, ServedModel
from headrace.serving.observers.prediction_log import PredictionLog
from headrace.serving.observers.shadows import Shadows
from headrace.serving.replicas.follower import Follower, Following
from headrace.serving.requests.request_decoder import RequestDecoder
from tests.serving.served_models import (
    NOW_MS,
    SPEC,
    Pusher,
    Serving,
    deltas_of_article,
    follow,
    memory_store,
    news,
)

LATER = NOW_MS + 1_000


ALIASES = {"production": "news", "shadow": "news-2"}


def second() -> ModelSpec:
    """The fields of `news`, and one that only this model reads."""
    text = SPEC.replace('name = "news"', 'name = "news-2"')
    return parse_spec(text + '\n[fields.colour]\nnumber = 9\ntransform = "id"\n', "news-2.toml")


class Two(Serving):
    """A server of two models; `log` holds the logged messages."""

    def __init__(
        self,
        log: PredictionLog | None = None,
        admin: str = "",
        admin_grants: Sequence[TokenGrant] = (),
    ) -> None:
        super().__init__(memory_store(news()))
        self.follow()
        spec, store = second(), memory_store(second())
        Pusher(store).push(deltas_of_article(spec, "hot", -3.0))
        other = Follower(Replica(store, store.shape()), Following(), self.clock, lambda _: None)
        follow(other)
        self.second = ServedModel(
            spec,
            RequestDecoder(spec.fields, self.limits),
            Predictor(spec.fields, open_model(spec, store.shape().buckets)),
            other,
        )
        aliases = Aliases(["news", "news-2"], ALIASES, lambda: LATER)
        self.models = ModelRegistry([self.served, self.second], aliases)
        counts = RequestMetrics(self.registry)
        logs = [] if log is None else [log]
        self.shadows = Shadows(self.models, counts.shadowed, logs)
        parts = replace(
            self.parts(self.models, counts),
            observers=[*logs, self.shadows],
            admin_tokens=Tokens([admin] if admin else []),
            admin_grants=admin_grants,
            admin_open=not admin,
        )
        self.__dict__["app"] = make_app(parts)


class Stuck(ListWriter):
    """A writer that blocks until it is released."""

    def __init__(self) -> None:
        super().__init__()
        self.reached, self.go_on = threading.Event(), threading.Event()

    def flush(self) -> None:
        self.reached.set()
        self.go_on.wait(60)
        super().flush()
