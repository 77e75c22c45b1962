"""Decides when a process that died is started again, and when the supervisor gives up.

A process that ran for `quick_s` had begun to work, so its death is an accident: it is started again
at once. A process that dies earlier may never work. Each such quick failure doubles the pause, and
after `quick_failures` of them in a row there is no further start.

Two supervisors follow it: `deploy.local.supervisor` for the parts of `headrace run` and `demo`, and
`serving.workers.process_pool` for the workers of a server, which also gives up on a worker that was
never ready.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """Pauses between restarts, and the limit of quick failures."""

    first_pause_s: float = 0.1
    """Before the first restart. Short, because a crash is rare and its cost is freshness."""

    longest_pause_s: float = 5.0
    """Upper bound of the pause, so that a process that cannot work costs little CPU."""

    quick_s: float = 10.0
    """A process that ran longer had begun to work: imports and connections take 2 to 5 s."""

    quick_failures: int = 5
    """Deaths within `quick_s` of a start, in a row, after which the supervisor gives up."""


class RestartHistory:
    """Counts the quick failures of one process. Pure: the caller measures the time."""

    def __init__(self, policy: RestartPolicy) -> None:
        self.policy = policy
        self.quick_failures = 0
        self._outages = 0

    def died(self, lived_s: float, *, outage: bool = False) -> None:
        """Count a death after `lived_s`. A long life clears the counts.

        outage: whether the death is no failure of the process; it only makes the pauses longer.
        """
        if lived_s >= self.policy.quick_s:
            self.quick_failures = self._outages = 0
        elif outage:
            self._outages += 1
        else:
            self.quick_failures += 1

    @property
    def exhausted(self) -> bool:
        """Whether the quick failures have reached the limit."""
        return self.quick_failures >= self.policy.quick_failures

    @property
    def pause_s(self) -> float:
        """The pause before the next start."""
        policy = self.policy
        doublings = max(0, self.quick_failures + self._outages - 1)
        # bounded, because 2.0**1024 is no float, and outages have no limit
        return min(policy.first_pause_s * 2.0 ** min(doublings, 64), policy.longest_pause_s)
