"""KEDA evaluates the formula of the learners as the chart expects."""

import json
import subprocess
from typing import Any, NamedTuple

import pytest

from headrace.deploy.models.shipped import path_of
from tests.cluster.keda.build import program
from tests.cluster.keda.scaling_rule import read_rule, scaled_object

EXAMPLES = 500
"""Examples per second for each learner."""


class Metrics(NamedTuple):
    """What KEDA's triggers report."""

    lag: float
    rate: float
    full: float = 0
    pods: float = 1


LOADS = {
    "no events and no lag": Metrics(0, 0),
    "little load": Metrics(3, 120),
    "the rate needs two learners": Metrics(40, 900),
    "the rate needs four learners, before there is a lag": Metrics(0, 2000, pods=1),
    "the lag needs more learners than the rate": Metrics(5200, 600, pods=2),
    "the rate needs more learners than the lag": Metrics(1100, 3400, pods=2),
    "lag and rate need the same number": Metrics(3000, 1500, pods=3),
    "within the tolerance of the autoscaler": Metrics(2900, 1520, pods=3),
    "more than the largest number": Metrics(90_000, 1e6, pods=4),
    "fractions of examples": Metrics(12, 1234.567, pods=2),
    "no learner reports, and none can be full": Metrics(2500, 100, full=1, pods=0),
}
HELD = {
    "logs are full under load": Metrics(90_000, 1e6, full=1, pods=3),
    "logs are full without load": Metrics(0, 0, full=1, pods=5),
}


@pytest.fixture(scope="module")
def scaled() -> dict[str, Any]:
    """The learners' ScaledObject in a release that scales by lag and rate."""
    if not program().exists():
        pytest.skip("KEDA's formula is not built: `python -m tests.cluster.keda.build`, with Go")
    return scaled_object(path_of("demo"), 8, 8, EXAMPLES)


def evaluated(scaled: dict[str, Any], *rows: dict[str, Any]) -> list[dict[str, Any]]:
    """Return KEDA's answer for each row."""
    done = _run(scaled, *rows)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def _run(scaled: dict[str, Any], *rows: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    given = json.dumps({"scaledObject": scaled, "rows": rows})
    return subprocess.run([program()], input=given, check=False, capture_output=True, text=True)


def test_keda_wants_as_many_learners_as_lag_and_rate_need(scaled: dict[str, Any]) -> None:
    rule = read_rule(scaled["spec"])
    answers = evaluated(scaled, *({"values": each._asdict()} for each in LOADS.values()))
    for name, load, answer in zip(LOADS, LOADS.values(), answers, strict=True):
        present = max(1, int(load.pods))
        wanted = rule.wanted(present, load.lag, load.rate)
        # the composite metric is compared with the target as a lag is
        assert rule.wanted(present, answer["value"], 0) == wanted, name
        total = max(load.lag / rule.lag, load.rate / rule.examples)
        assert answer["value"] / rule.lag == pytest.approx(total, abs=1e-5), name


def test_keda_keeps_the_number_of_learners_while_logs_are_full(scaled: dict[str, Any]) -> None:
    rule = read_rule(scaled["spec"])
    answers = evaluated(scaled, *({"values": each._asdict()} for each in HELD.values()))
    for name, load, answer in zip(HELD, HELD.values(), answers, strict=True):
        assert rule.wanted(int(load.pods), answer["value"], 0) == load.pods, name


@pytest.mark.parametrize("trigger", Metrics._fields)
def test_the_autoscaler_gets_an_error_while_a_trigger_fails(
    scaled: dict[str, Any], trigger: str
) -> None:
    values = Metrics(50, 2000)._asdict()
    [answer] = evaluated(scaled, {"values": values, "failing": [trigger]})
    assert answer == {"error": f"{trigger} failed"}


@pytest.mark.parametrize("trigger", Metrics._fields)
def test_the_autoscaler_gets_an_error_while_a_metric_is_missing(
    scaled: dict[str, Any], trigger: str
) -> None:
    values = {key: value for key, value in Metrics(50, 2000, 1)._asdict().items() if key != trigger}
    [answer] = evaluated(scaled, {"values": values})
    needed = trigger in ("full", "pods")  # while logs are full, neither lag nor rate is read
    assert ("error" in answer) == needed, answer


def test_keda_refuses_a_formula_with_an_unknown_trigger(scaled: dict[str, Any]) -> None:
    wrong = json.loads(json.dumps(scaled))
    wrong["spec"]["advanced"]["scalingModifiers"]["formula"] += " + speed"
    done = _run(wrong, {"values": Metrics(0, 0)._asdict()})
    assert done.returncode == 1
    assert "unknown name speed" in done.stderr
