"""A server with two models that follows deployments, for promotions on a real Kafka and Valkey."""

import contextlib
import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import httpx

from headrace.deploy.model_sources import deployed_model
from headrace.ingest.kafka.settings import KafkaSettings
from headrace.ingest.kafka.topics import ensure_topics, topics_for
from headrace.learner.experiments.promotion_rules import PromotionRules
from headrace.learner.spec.model_spec import ModelSpec, parse_spec
from headrace.pserver.redis_backend.redis_store import open_store
from headrace.serving.deployments.deployment_records import model_change
from headrace.serving.deployments.topic_follower import write_deployments
from headrace.serving.models.loading import StoreModel
from headrace.serving.process import ServerSettings, run_server
from headrace.serving.promotion.promotion_controller import KafkaPromotionPorts, drive_promotion
from headrace.serving.promotion.promotion_state import Promotion, PromotionStage
from headrace.serving.requests.limits import RequestLimits
from tests.running_server import SHARED_PARTITIONS
from tests.serving.served_models import SPEC, Pusher, deltas_of_article, eventually, shape_of

SHARE = 5.0
BODY_CANDIDATES = [{"article_id": "hot"}] * 20


class Site:
    """A server that follows deployments, with two models in a real store."""

    def __init__(self, kafka: str, valkey: str, name: str, *, bad: bool = True) -> None:
        self.kafka, self.valkey = KafkaSettings(kafka), valkey
        self.control, self.arm = self._spec(name), self._spec(f"{name}-bad")
        self.alias = f"production-{name}"
        self.stop, self.ports = threading.Event(), list[int]()
        self._thread = threading.Thread(target=self._serve)
        ensure_topics(self.kafka, topics_for(name, SHARED_PARTITIONS))
        for spec in (self.control, self.arm):
            with contextlib.closing(open_store(valkey, spec.name)) as store:
                store.create(shape_of(spec))
                if bad and spec is self.arm:  # made bad on purpose: it expects no clicks
                    Pusher(store).push(deltas_of_article(spec, "hot", 30.0))

    def _spec(self, name: str) -> ModelSpec:
        return parse_spec(SPEC.replace('name = "news"', f'name = "{name}"'), "news.toml")

    def _serve(self) -> None:
        with contextlib.closing(open_store(self.valkey, self.control.name)) as store:
            settings = ServerSettings(
                port=0,
                limits=RequestLimits(waiting_ms=60_000),
                aliases={self.alias: self.control.name},
                told_to=self.kafka,
                deployments_from=self.kafka,
            )
            models = [StoreModel(self.control, store)]
            opening = partial(deployed_model, [], self.valkey)
            run_server(settings, models, self.stop, self.ports.append, opening)

    def start(self) -> None:
        self._thread.start()
        eventually(lambda: self.ports)
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{self.ports[0]}", timeout=60)
        eventually(lambda: self.client.get("/health/ready").status_code == 200)

    def end(self) -> None:
        self.client.close()
        self.stop.set()
        self._thread.join(60)

    def answered_by(self, request: str, client: httpx.Client | None = None) -> str:
        """Return the model that answers a request; client: of another server of the site."""
        body = {"request_id": request, "candidates": BODY_CANDIDATES}
        answer = (client or self.client).post(f"/v1/models/{self.alias}:predict", json=body)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["model"])

    def stage(self, model: str) -> str | None:
        found = self.client.get("/health/ready").json()["deployments"]["models"].get(model)
        return None if found is None else found["stage"]


@contextlib.contextmanager
def running_site(kafka: str, valkey: str, name: str, *, bad: bool = True) -> Iterator[Site]:
    """A site that serves until the block ends. bad: whether the arm expects no clicks."""
    site = Site(kafka, valkey, name, bad=bad)
    site.start()
    try:
        yield site
    finally:
        site.end()


class Rollback(NamedTuple):
    """A bad canary that was rolled back."""

    ended: Promotion
    answers: int
    met: int
    """Answers that the canary gave."""
    seconds: float
    """From the canary's first answer to its last."""
    share_of_a_minute: float
    """Answers of the canary, divided by the answers of a minute."""


def roll_back_bad_canary(site: Site) -> Rollback:
    """Give a bad arm 5 % of the traffic, and send requests until the controller rolls it back."""
    control, arm = site.control.name, site.arm.name
    write_deployments(site.kafka, [model_change(arm, site.arm.text)])
    eventually(lambda: site.stage(arm) == "ready")
    rules = PromotionRules(alias=site.alias, steps=(SHARE, 100.0))
    begun = Promotion.begin(arm, site.arm.text, control, rules, int(time.time() * 1000))
    canary = begun.moved(PromotionStage.CANARY, "for a test", begun.since_ms, 0)
    ended: list[Promotion] = []
    with KafkaPromotionPorts(site.kafka, arm, control, lambda: True) as ports:
        ports.write(canary)

        def drive() -> None:
            ended.append(drive_promotion(ports, site.stop, lambda *_: None))

        controller = threading.Thread(target=drive)
        controller.start()
        answers: list[tuple[float, str]] = []

        def gone() -> bool:
            for _ in range(5):
                answers.append((time.monotonic(), site.answered_by(f"r{len(answers)}")))
            return bool(ended) and site.stage(arm) is None

        eventually(gone)
        controller.join(60)
    met = [at for at, model in answers if model == arm]
    assert met, "the canary answered nothing"
    rate = len(answers) / (answers[-1][0] - answers[0][0])
    return Rollback(ended[0], len(answers), len(met), met[-1] - met[0], len(met) / (60 * rate))
