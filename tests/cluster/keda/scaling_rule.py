"""Computes the number of learners as KEDA and Kubernetes would, from the chart's ScaledObject.

Targets and bounds are read from the rendered chart, so the rule is the one that users get. As in a
HorizontalPodAutoscaler (autoscaling/v2), the wanted number is the total over the target, rounded
up. A deviation of at most a tenth changes nothing.
"""

from __future__ import annotations

import math
import re
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

    def wanted(self, present: int, lag: float, rate: float) -> int:
        """Return the number of learners for this lag and rate of examples."""
        total = max(lag / self.lag, rate / self.examples)
        if abs(total / present - 1.0) <= _TOLERANCE:
            return present
        return min(self.most, max(self.least, math.ceil(total)))


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
    terms = _RATE.search(scaled["advanced"]["scalingModifiers"]["formula"])
    assert terms is not None, scaled
    bounds = scaled["minReplicaCount"], scaled["maxReplicaCount"]
    return ScalingRule(int(terms[2]), int(terms[1]), *bounds)
