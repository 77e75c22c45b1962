"""Deployments and promotions on a real Kafka and a real Valkey: load, canary, rollback, fencing."""

from __future__ import annotations

import contextlib
import threading
import time
from functools import partial
from typing import TYPE_CHECKING

import httpx
import msgspec
import pytest
from typer.testing import CliRunner

from headrace.deploy.cli.main import app
from headrace.deploy.model_sources import deployed
from headrace.ingest.errors import StreamError
from headrace.ingest.kafka.settings import KafkaSettings
from headrace.ingest.kafka.topics import ensure_topics, topics_for
from headrace.learner.experiments.promotion_rules import PromotionRules
from headrace.learner.spec.model_spec import ModelSpec, parse_spec
from headrace.pserver.redis_backend.redis_store import open_store
from headrace.serving.deployments.deployment_records import alias_change, model_change
from headrace.serving.deployments.topic_follower import read_deployments, write_deployments
from headrace.serving.models.loading import StoreModel
from headrace.serving.process import ServerSettings, run_server
from headrace.serving.promotion.promotion_controller import (
    KafkaPromotionPorts,
    drive_promotion,
    read_promotion_state,
)
from headrace.serving.promotion.promotion_state import Promotion, PromotionStage
from headrace.serving.requests.limits import RequestLimits
from tests.deploy.command import headrace, running
from tests.running_server import SHARED_PARTITIONS
from tests.serving.served_models import SPEC, Pusher, deltas_of_article, eventually, shape_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

SHARE = 5.0
BODY_CANDIDATES = [{"article_id": "hot"}] * 20


class Site:
    """A server that follows deployments, with two models in a real store."""

    def __init__(self, kafka: str, valkey: str, name: str) -> None:
        self.kafka, self.valkey = KafkaSettings(kafka), valkey
        self.control, self.arm = self._spec(name), self._spec(f"{name}-bad")
        self.alias = f"production-{name}"
        self.stop, self.ports = threading.Event(), list[int]()
        self._thread = threading.Thread(target=self._serve)
        ensure_topics(self.kafka, topics_for(name, SHARED_PARTITIONS))
        for spec in (self.control, self.arm):
            with contextlib.closing(open_store(valkey, spec.name)) as store:
                store.create(shape_of(spec))
                if spec is self.arm:  # made bad on purpose: it expects no clicks
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
            opening = partial(deployed, [], self.valkey)
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

    def answered_by(self, request: str) -> str:
        body = {"request_id": request, "candidates": BODY_CANDIDATES}
        answer = self.client.post(f"/v1/models/{self.alias}:predict", json=body)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["model"])

    def stage(self, model: str) -> str | None:
        found = self.client.get("/health/ready").json()["deployments"]["models"].get(model)
        return None if found is None else found["stage"]


@pytest.fixture
def site(kafka: str, valkey: str, fresh_name: Callable[[str], str]) -> Iterator[Site]:
    site = Site(kafka, valkey, fresh_name("news"))
    site.start()
    try:
        yield site
    finally:
        site.end()


def test_a_bad_canary_is_rolled_back_on_a_running_server(site: Site) -> None:
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
    assert ended[0].stage is PromotionStage.ROLLED_BACK
    assert "level: " in ended[0].decisions[-1].reason
    met = [at for at, model in answers if model == arm]
    assert met, "the canary answered nothing"
    rate = len(answers) / (answers[-1][0] - answers[0][0])
    print(
        f"{len(met)} of {len(answers)} requests met it, {met[-1] - met[0]:.1f} s, "
        f"{len(met) / (60 * rate):.2%} of a minute's requests"
    )
    assert len(met) / (60 * rate) < 0.05
    assert site.answered_by("after") == control
    state = read_deployments(site.kafka)
    assert (state.aliases[site.alias], arm in state.models) == (control, False)


def test_a_rollback_by_an_operator_fences_the_controller(site: Site) -> None:
    control, arm = site.control.name, site.arm.name
    rules = PromotionRules(alias=site.alias)
    begun = Promotion.begin(arm, site.arm.text, control, rules, 0)
    with KafkaPromotionPorts(site.kafka, arm, control, lambda: True) as ports:
        ports.write(begun.moved(PromotionStage.CANARY, "for a test", 0, 1))
        said = CliRunner().invoke(
            app, ["experiment", "rollback", arm, "--kafka", site.kafka.bootstrap]
        )
        assert said.exit_code == 0, said.output
        assert "rolled back 0%: by an operator" in said.output
        with pytest.raises(StreamError):
            ports.write(begun.moved(PromotionStage.PROMOTED, "late", 0))
    found = read_promotion_state(site.kafka, arm)
    assert found.promotion is not None
    assert found.promotion.stage is PromotionStage.ROLLED_BACK
    assert found.deployments.aliases[site.alias] == control
    assert msgspec.json.encode(found.promotion)


def test_an_alias_is_switched_everywhere_by_one_command(site: Site) -> None:
    control, arm = site.control.name, site.arm.name
    kafka = ["--kafka", site.kafka.bootstrap]
    write_deployments(site.kafka, [model_change(arm, site.arm.text)])
    said = CliRunner().invoke(app, ["serving", "alias", site.alias, arm, "--everywhere", *kafka])
    assert said.exit_code == 0, said.output
    eventually(lambda: site.answered_by("x") == arm)
    write_deployments(site.kafka, [alias_change(site.alias, None), model_change(arm, None)])
    eventually(lambda: site.answered_by("x") == control)
    eventually(lambda: site.stage(arm) is None)


def test_a_promotion_killed_and_started_again_goes_on_until_it_is_rolled_back(
    site: Site, tmp_path: Path
) -> None:
    control, model = site.control.name, f"{site.control.name}-slow"
    (tmp_path / "control.toml").write_text(site.control.text)
    (tmp_path / "experiment.toml").write_text(
        '[experiment]\nname = "rates"\ncontrol = "control.toml"\n'
        '[arm.slow]\n"optimizer.alpha" = 0.01\n'
        f'[promotion]\nalias = "{site.alias}"\n'
    )
    kafka = ["--kafka", site.kafka.bootstrap]
    file = str(tmp_path / "experiment.toml")
    promote = ["experiment", "promote", file, "slow", *kafka, "--redis", site.valkey]

    def state() -> Promotion | None:
        return read_promotion_state(site.kafka, model).promotion

    with running(*promote) as first:
        first.wait_for("catching up 0%: rows created")
        first.process.kill()
        first.end()
    before = state()
    assert before is not None
    assert (tmp_path / f"{model}.toml").read_text() == before.spec
    with running(*promote) as second:
        second.wait_for("waits for learners")
        assert state() == before, "it goes on, and decides nothing twice"
        rolled = headrace("experiment", "rollback", model, *kafka)
        assert rolled.returncode == 0, rolled.stderr
        assert second.end() == 1
    after = state()
    assert after is not None
    assert after.decisions[:-1] == before.decisions
    assert read_deployments(site.kafka).aliases[site.alias] == control
    shown = headrace("experiment", "promotion", model, *kafka)
    assert "rolled back 0%: by an operator" in shown.stdout
    refused = headrace(*[each if each != "slow" else "fast" for each in promote])
    assert refused.returncode == 2
    assert "expected an arm (slow), got 'fast'" in refused.stderr
