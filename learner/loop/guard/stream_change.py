"""Follows a change of the stream: from the first suspicion until it is over, or lasts.

A producer at fault and users who behave differently look alike. A fault ends, or an operator ends
it; a change that goes on is the new stream. So a suspicion puts the guard on the alert, good
examples end the alert, and suspect batches that go on end it, too: then the model follows, and is
judged again once it has.
"""

import math
from dataclasses import dataclass, field

from headrace.ingest.examples.batch import Examples
from headrace.learner.loop.guard.surprise import SurpriseLimits


@dataclass(frozen=True, slots=True)
class GuardLimits:
    """The bounds beyond which a batch is quarantined."""

    surprise: SurpriseLimits = field(default_factory=SurpriseLimits)
    """When a batch is suspect."""
    gradient_ratio: float = 100.0
    """Largest gradient of a mini-batch over the running mean of these, in a synchronous group: a
    step that all members took stays, and what it ruined shows one mini-batch later."""
    warm_up_examples: int = 5_000
    """Before labels are judged, by a new process or after a change: a young model says little."""
    calm_examples: int = 2_000
    """Good examples that end an alert."""
    lasting_ms: int = 60_000
    """Of append time: a faulty deployment is often rolled back within a minute."""
    lasting_examples: int = 2_000
    """A change that lasts must have both: a minute of a quiet stream is nothing."""
    most_parked: int = 200
    """Messages of one change: fewer than may be parked, or learning would stop."""
    gradient_memory: int = 100_000
    """Examples over which the running mean of gradients is taken, roughly."""
    largest_gain: float = 1e12
    """Of one float of a row between two pushes: the square of a gradient of a million."""


class StreamChange:
    """A change of the stream: from a first suspicion until it is over, or lasts."""

    def __init__(self, limits: GuardLimits) -> None:
        self._limits = limits
        self._following = limits.warm_up_examples
        self._calm = 0  # good examples until the alert ends
        self._began_ms = self._examples = self._messages = 0
        self.lasted = False

    @property
    def open(self) -> bool:
        """Whether a batch was suspect lately."""
        return self._calm > 0

    @property
    def follows(self) -> bool:
        """Whether the model may be too young to be judged by its scores."""
        return self._following > 0

    def good(self, examples: int) -> None:
        """Count examples that raised no suspicion."""
        self._following = max(self._following - examples, 0)
        self._calm = max(self._calm - examples, 0)

    def suspected(self, examples: Examples) -> bool:
        """Count a suspect batch; return whether the change lasts: then it is over."""
        limits = self._limits
        if not self.open:
            self._began_ms, self._examples, self._messages = int(examples.append_ms[0]), 0, 0
        self._calm = limits.calm_examples
        self._examples += len(examples)
        self._messages += 1
        long = int(examples.append_ms[-1]) - self._began_ms >= limits.lasting_ms
        self.lasted = self._messages > limits.most_parked or (
            long and self._examples >= limits.lasting_examples
        )
        if self.lasted:
            self._calm, self._following = 0, limits.warm_up_examples
        return self.lasted


class GradientMean:
    """A mean over the latest mini-batches, and the bound that is a multiple of it."""

    def __init__(self, limits: GuardLimits) -> None:
        self._limits, self._seen, self._mean = limits, 0, 0.0

    def move(self, value: float, examples: int, ratio: float) -> float:
        """Return the bound for a value over so many examples, then move the mean towards it.

        The bound is infinite during warm-up. Beyond the bound, a value counts as the bound.
        """
        limits, known = self._limits, self._seen >= self._limits.warm_up_examples
        bound = ratio * self._mean if known else math.inf
        self._seen += examples
        share = max(examples / limits.gradient_memory, examples / self._seen)
        self._mean += min(share, 1.0) * (min(value, bound) - self._mean)
        return bound
