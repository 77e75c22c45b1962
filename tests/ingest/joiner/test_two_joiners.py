"""Tests joiners that share the partitions of a model and are killed: every event is joined once."""

import random
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.ingest.events_of import happen
from tests.ingest.joiner.joined import Joined

PARTITIONS = 4


class Joiners:
    """Joiner processes by instance."""

    def __init__(self, joined: Joined) -> None:
        self.joined = joined
        self.alive: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, instance: str) -> None:
        self.alive[instance] = self.joined.start(instance)

    def kill(self, instance: str) -> None:
        process = self.alive.pop(instance)
        process.kill()
        process.wait()

    def wait(self, until: Callable[[], bool]) -> None:
        self.joined.wait(until, *self.alive.values())

    def wait_for_more(self, examples: int) -> None:
        """Wait until this many more examples are written, or all of them."""
        enough = self.joined.state.read().examples + examples

        def done() -> bool:
            state = self.joined.state.read()
            return state.examples >= enough or not state.lag

        self.wait(done)


@contextmanager
def joiners(joined: Joined) -> Iterator[Joiners]:
    running = Joiners(joined)
    try:
        yield running
    finally:
        for instance in list(running.alive):
            running.kill(instance)


def test_two_joiners_killed_in_turns_write_every_example_once(
    kafka: str, fresh_name: Callable[[str], str]
) -> None:
    seed = 21
    dice = random.Random(seed)
    joined = Joined.fresh(kafka, fresh_name, PARTITIONS)
    joined.pace = {"step_events": 1_000, "backlog_commit_ms": 0}  # 130 commits: kills hit between
    happened = happen(seed, count=100_000, partitions=PARTITIONS)
    joined.send(happened)
    state = joined.state
    with joiners(joined) as running:
        running.start("a")
        running.wait_for_more(1)
        running.start("b")  # half of the partitions move over during the join
        in_the_middle = 0
        for victim in ("a", "b", "a"):
            running.wait_for_more(dice.randrange(1, 20_000))
            running.kill(victim)
            in_the_middle += state.read().lag > 0
            running.start(victim)
        running.wait_for_more(dice.randrange(1, 10_000))
        running.kill(dice.choice("ab"))  # for good: the other takes over its partitions
        running.wait(lambda: state.read().lag == 0)
    assert in_the_middle, f"seed {seed}"
    assert sorted(joined.examples()) == sorted(happened.examples), f"seed {seed}"
    end = state.read()
    assert (end.impressions, end.examples) == (100_000, len(happened.examples))
    unmet = end.late_clicks + end.unmatched_clicks  # a restart may turn the one into the other
    assert (unmet, end.duplicates) == (happened.late, happened.duplicates)
    assert end.dead_letters == happened.dead


def test_two_joiners_with_default_options_share_the_partitions(
    kafka: str, fresh_name: Callable[[str], str]
) -> None:
    seed = 23
    joined = Joined.fresh(kafka, fresh_name, PARTITIONS)
    happened = happen(seed, count=8_000, partitions=PARTITIONS)
    first, second = joined.start(""), joined.start("")
    try:
        joined.send(happened)
        joined.wait(lambda: joined.state.read().lag == 0, first, second)
        assert (first.poll(), second.poll()) == (None, None), "one fenced the other"
        assert sorted(joined.examples()) == sorted(happened.examples), f"seed {seed}"
        second.kill()
        second.wait()
        again = happen(seed + 1, count=3_000, partitions=PARTITIONS)
        joined.send(again)
        joined.wait(lambda: joined.state.read().lag == 0, first)
    finally:
        for each in (first, second):
            each.kill()
            each.wait()
    assert joined.state.read().impressions >= 8_000
