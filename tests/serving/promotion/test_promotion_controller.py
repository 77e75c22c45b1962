"""The controller of a promotion over ports in memory: kills, outages, fencing, operators."""

from __future__ import annotations

import threading
from collections.abc import Callable

import msgspec
import pytest

from headrace.ingest.errors import Fenced, KafkaUnreachable
from headrace.learner.experiments.promotion_rules import PromotionRules
from headrace.serving.deployments.deployment_records import Deployments
from headrace.serving.errors import ServingError
from headrace.serving.evaluation.windows import WindowMetrics
from headrace.serving.promotion.promotion_checks import ServedFigures
from headrace.serving.promotion.promotion_controller import DeployedState, drive_promotion
from headrace.serving.promotion.promotion_state import (
    Promotion,
    PromotionStage,
    decoded_promotion,
    deployments_of,
)
from headrace.serving.promotion.promotion_steps import PromotionFigures
from headrace.serving.promotion.served_loss import served_loss
from tests.serving.evaluation.streams import published_minute

RULES = PromotionRules(steps=(5.0, 100.0), shadow_s=10, step_s=10, longest_s=100, batch_s=60)
GOOD = ServedFigures(-0.002, -0.001, 400, 400.0, 1.0, 20.0, 1.0, 0)
MODEL, CONTROL = "news-2", "news"


class MemoryPorts:
    """A topic in memory. `faults` are raised by the next writes, before or after their effect."""

    def __init__(self, served: ServedFigures = GOOD) -> None:
        self.deployments, self.record = Deployments(), b""
        self.served, self.now = served, 0
        self.faults: list[tuple[str, Exception]] = []
        self.writes = 0

    def deployed(self) -> DeployedState:
        return DeployedState(
            self.deployments, decoded_promotion(self.record) if self.record else None
        )

    def write(self, promotion: Promotion) -> None:
        when, error = self.faults.pop(0) if self.faults else ("", None)
        if error is not None and when == "before":
            raise error
        self.writes += 1
        for key, value in deployments_of(promotion):
            self.deployments = self.deployments.after(key, value)
        self.record = deployments_of(promotion)[-1].value
        if error is not None:
            raise error

    def figures(self, promotion: Promotion, target: str, now_ms: int) -> PromotionFigures:
        return PromotionFigures(target, 0, True, 0.0, 2, 2, self.served)

    def now_ms(self) -> int:
        self.now += 1_000
        return self.now

    def begin(self) -> MemoryPorts:
        self.write(Promotion.begin(MODEL, "spec", CONTROL, RULES, 0))
        return self


def drive(
    ports: MemoryPorts, shown: Callable[[Promotion, str], None] = lambda *_: None
) -> Promotion:
    return drive_promotion(ports, threading.Event(), shown, ports.now_ms, look_s=0.0)


def test_a_good_model_ends_with_all_requests_and_its_decisions() -> None:
    ports = MemoryPorts().begin()
    said: list[str] = []
    ended = drive(ports, lambda _, waiting: said.append(waiting))
    assert ended.stage is PromotionStage.PROMOTED
    assert ports.deployments.aliases == {"production": MODEL}
    assert ports.deployments.models == {MODEL: "spec"}
    assert ports.writes == len(ended.decisions)
    assert any("time: " in each for each in said)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_write_that_kafka_did_not_acknowledge_is_read_from_the_topic(when: str) -> None:
    ports = MemoryPorts().begin()
    ports.faults = [(when, KafkaUnreachable("away"))] * 4
    quiet = drive(MemoryPorts().begin())
    ended = drive(ports)
    assert [(each.stage, each.share) for each in ended.decisions] == [
        (each.stage, each.share) for each in quiet.decisions
    ]


def test_a_controller_that_was_replaced_ends() -> None:
    ports = MemoryPorts().begin()
    ports.faults = [("before", Fenced("another took over"))]
    with pytest.raises(Fenced):
        drive(ports)


def test_a_controller_leaves_an_alias_that_an_operator_switched() -> None:
    ports = MemoryPorts().begin()

    def switch(state: Promotion, _: str) -> None:
        if state.stage is PromotionStage.CANARY:
            ports.deployments = Deployments(ports.deployments.models, {"production": "news-3"})

    assert drive(ports, switch).stage is PromotionStage.ABANDONED
    assert ports.deployments.aliases == {"production": "news-3"}


def test_a_stopped_controller_changes_nothing() -> None:
    ports, stop = MemoryPorts().begin(), threading.Event()
    stop.set()
    state = drive_promotion(ports, stop, lambda *_: None, ports.now_ms, look_s=0.0)
    assert (state.stage, ports.writes) == (PromotionStage.PREPARING, 1)


def test_a_promotion_that_was_never_begun_is_refused() -> None:
    with pytest.raises(ServingError):
        drive(MemoryPorts())


def minute(model: str, begin: int, loss: float) -> WindowMetrics:
    return published_minute(model, 60_000 * begin, 100, loss, ctr_predicted=0.11)


def test_the_loss_covers_windows_that_are_shorter_than_a_minute() -> None:
    short = PromotionRules(batch_s=2, window_s=2)
    canary = Promotion.begin(MODEL, "spec", CONTROL, short, 0).moved(
        PromotionStage.CANARY, "", 600_000, 0
    )
    windows = [
        msgspec.structs.replace(
            minute(model, 300 + at, loss + 0.001 * (at * len(model) % 7)),
            begin_ms=600_000 + 2000 * at,
            end_ms=602_000 + 2000 * at,
        )
        for at in range(12)
        for model, loss in ((MODEL, 0.3), (CONTROL, 0.32))
    ]
    found = served_loss(windows, canary)
    assert found.loss_high is not None and found.loss_high < 0
    assert found.clicks == 120
    begun = Promotion.begin(MODEL, "spec", CONTROL, RULES, 0)
    usual = served_loss(windows, begun.moved(PromotionStage.CANARY, "", 600_000, 0))
    assert usual.loss_low is None, "of minutes alone"


def test_the_loss_covers_the_minutes_since_the_first_step() -> None:
    begun = Promotion.begin(MODEL, "spec", CONTROL, RULES, 0)
    assert served_loss([minute(MODEL, 1, 9.0)], begun) == ServedFigures()
    canary = begun.moved(PromotionStage.CANARY, "", 600_000, 0)
    before = [minute(each, 5, 9.0) for each in (MODEL, CONTROL)]
    assert served_loss(before, canary) == ServedFigures()
    later = [
        minute(model, at, loss + 0.001 * (at * len(model) % 7))
        for at in range(10, 40)
        for model, loss in ((MODEL, 0.3), (CONTROL, 0.32), ("news-9", 0.1))
    ]
    found = served_loss(before + later, canary)
    assert found.loss_low is not None
    assert found.loss_high is not None
    assert -0.03 < found.loss_low < -0.02 < found.loss_high < 0.0
    few = served_loss([each for each in later if each.begin_ms < 960_000], canary)
    assert (few.loss_low is None, few.loss_high) == (False, None), (
        "six batches reject, but prove nothing"
    )
    assert (found.clicks, round(found.expected_clicks)) == (300, 330)
