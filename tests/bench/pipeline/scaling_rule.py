"""Computes the number of learners as KEDA and Kubernetes would, from the chart's ScaledObject.

The formula, bounds and behavior are read from the rendered chart, so the rule is the one that
users get. This module repeats what a HorizontalPodAutoscaler (autoscaling/v2) does with them:

- The wanted number is the total over the target, rounded up. A deviation of at most a tenth
  changes nothing.
- The number grows at once, within the policies.
- It shrinks by one pod a period, to the largest number that was wanted in the stabilization window.

`speed` divides all times, for a benchmark of a minute.
"""

from __future__ import annotations

import math
import re
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.deploy.chart.helm import render

_TOLERANCE = 0.1
_RATE = re.compile(r"rate / (\d+) > lag / (\d+) \?")


@dataclass(frozen=True, slots=True)
class ScalingRule:
    """The rule that the chart's ScaledObject gives the learners."""

    lag: int
    """Messages of lag for each learner."""
    examples: int
    """Examples per second for each learner."""
    least: int
    most: int
    polling_s: float
    window_s: float
    """Stabilization window of scaling down."""
    period_s: float
    """Time in which at most one pod is removed."""
    growth_period_s: float
    """Time in which the number at most doubles, or grows by four."""

    def faster(self, speed: float) -> ScalingRule:
        """Return the rule with all times divided by `speed`."""
        times = self.polling_s, self.window_s, self.period_s, self.growth_period_s
        bounds = self.lag, self.examples, self.least, self.most
        return ScalingRule(*bounds, *(each / speed for each in times))

    def wanted(self, present: int, lag: float, rate: float) -> int:
        """Return the number of learners for this lag and rate of examples."""
        total = max(lag / self.lag, rate / self.examples)
        if abs(total / present - 1.0) <= _TOLERANCE:
            return present
        return min(self.most, max(self.least, math.ceil(total)))


class Autoscaler:
    """Applies a rule over time."""

    def __init__(self, rule: ScalingRule) -> None:
        self._rule = rule
        self._wanted = deque[tuple[float, int]]()
        self._removed_at_s = -math.inf
        self._grown: tuple[float, int] | None = None

    def replicas(self, now_s: float, present: int, lag: float, rate: float) -> int:
        """Return the number of learners from now on."""
        rule, wanted = self._rule, self._rule.wanted(present, lag, rate)
        self._wanted.append((now_s, wanted))
        while self._wanted[0][0] < now_s - rule.window_s:
            self._wanted.popleft()
        if wanted > present:
            return min(wanted, self._ceiling(now_s, present))
        if max(each for _, each in self._wanted) >= present:
            return present
        if now_s - self._removed_at_s < rule.period_s:
            return present
        self._removed_at_s = now_s
        return present - 1

    def _ceiling(self, now_s: float, present: int) -> int:
        if self._grown is None or now_s - self._grown[0] >= self._rule.growth_period_s:
            self._grown = now_s, present
        before = self._grown[1]
        return max(2 * before, before + 4)


def rule_of_chart(spec: Path, partitions: int, most: int, examples: int) -> ScalingRule:
    """Return the rule of the learners in a release with this model. Raises ValueError."""
    return read_rule(scaled_object(spec, partitions, most, examples)["spec"])


def scaled_object(spec: Path, partitions: int, most: int, examples: int) -> dict[str, Any]:
    """Return the learners' ScaledObject in a release with this model. Raises ValueError."""
    scaling = {"max": most, "examples": examples}
    model = {
        "spec": spec.read_text(),
        "partitions": partitions,
        "learners": {"replicas": 1, "scaling": scaling},
    }
    values = {
        "kafka": {"bootstrap": "kafka:9092"},
        "redis": {"url": "redis://redis:6379"},
        "models": {"model": model},
        "server": {"anyone": True},
        "collector": {"anyone": True},
        "autoscaler": "keda",
        "keda": {"prometheus": {"address": "http://prometheus:9090"}},
    }
    [found] = [each for each in render(values) if each["kind"] == "ScaledObject"]
    return found


def read_rule(scaled: dict[str, Any]) -> ScalingRule:
    """Return the rule in the `spec` of a ScaledObject."""
    advanced = scaled["advanced"]
    terms = _RATE.search(advanced["scalingModifiers"]["formula"])
    assert terms is not None, advanced
    behavior = advanced["horizontalPodAutoscalerConfig"]["behavior"]
    up, down = behavior["scaleUp"], behavior["scaleDown"]
    assert [each["value"] for each in up["policies"]] == [100, 4], up
    assert [(each["type"], each["value"]) for each in down["policies"]] == [("Pods", 1)], down
    return ScalingRule(
        int(terms[2]),
        int(terms[1]),
        scaled["minReplicaCount"],
        scaled["maxReplicaCount"],
        scaled["pollingInterval"],
        down["stabilizationWindowSeconds"],
        down["policies"][0]["periodSeconds"],
        up["policies"][0]["periodSeconds"],
    )
