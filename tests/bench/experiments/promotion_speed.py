"""Seconds of a promotion and of a rollback, on a real Kafka, a real Valkey and one server.

`promote_seconds` is the time from the first record of a promotion until the model answers every
request: the server loads it, and the alias moves through all steps. Each step lasts until the
server follows. The waits of `[promotion]` (`shadow_s`, `step_s`) are left out, since they are
settings: a promotion takes so much longer than their sum.

`rollback_seconds` is the time from the first answer of a bad model at 5 % of the traffic until its
last one. The controller finds it by its level.
"""

import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from headrace.deploy.local.services.kafka import KafkaNode
from headrace.learner.experiments.promotion_rules import PromotionRules
from headrace.serving.promotion.promotion_controller import KafkaPromotionPorts
from headrace.serving.promotion.promotion_state import Promotion, PromotionStage
from tests.running_server import jars, running_server
from tests.serving.promotion.promotion_site import Site, roll_back_bad_canary, running_site
from tests.serving.served_models import eventually
from tests.valkey_cluster import ValkeyCluster

_IN_A_ROW = 50


class PromotionSpeed(NamedTuple):
    """Times of one promotion and one rollback."""

    promote_s: float
    rollback_s: float
    rollback_share_of_a_minute: float
    """Answers of the bad model, divided by the answers of a minute."""


def promotion_speed() -> PromotionSpeed:
    """Start the servers and measure."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        kafka = KafkaNode(path / "kafka", jars(), remove=path)
        valkey = ValkeyCluster(path / "cluster", primaries=2, remove=path)
        with running_server(kafka), running_server(valkey):
            with running_site(kafka.bootstrap, valkey.url, "good", bad=False) as site:
                promote_s = promoted(site)
            with running_site(kafka.bootstrap, valkey.url, "bad") as site:
                found = roll_back_bad_canary(site)
    return PromotionSpeed(promote_s, found.seconds, found.share_of_a_minute)


def promoted(site: Site) -> float:
    """Move the traffic of a site to its arm, as fast as the server follows; return the seconds."""
    arm, rules = site.arm.name, PromotionRules(alias=site.alias)
    state = Promotion.begin(arm, site.arm.text, site.control.name, rules, _now_ms())
    began_s = time.monotonic()
    with KafkaPromotionPorts(site.kafka, arm, site.control.name, lambda: True) as ports:
        ports.write(state)
        for stage in (PromotionStage.CATCHING_UP, PromotionStage.SHADOW):
            state = state.moved(stage, "for a benchmark", _now_ms())
            ports.write(state)
        eventually(lambda: site.stage(arm) == "ready")
        for step in range(len(rules.steps)):
            state = state.moved(PromotionStage.CANARY, "for a benchmark", _now_ms(), step)
            ports.write(state)
            requests = (f"{step}-{number}" for number in range(10**9))
            eventually(lambda: site.answered_by(next(requests)) == arm)  # noqa: B023 - called here
        state = state.moved(PromotionStage.PROMOTED, "for a benchmark", _now_ms())
        ports.write(state)
    eventually(lambda: all(site.answered_by(f"last-{n}") == arm for n in range(_IN_A_ROW)))
    return time.monotonic() - began_s


def _now_ms() -> int:
    return int(time.time() * 1000)
