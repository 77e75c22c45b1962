"""Tests joiners that share the partitions of a model and are killed: every event is joined once."""

import random
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from headrace.ingest.examples.batch import Kind
from headrace.ingest.features.label_policy import Policy
from headrace.ingest.logs.ndjson import DirectoryLog
from headrace.ingest.replay.replayer import ReplaySettings, replay
from tests.ingest.events_of import happen, spec_of
from tests.ingest.joiner.joined import WEEK, WEEK_SPEC, Joined

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
    happened = happen(seed, count=30_000, partitions=PARTITIONS)
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
    assert joined.state.read().impressions >= 30_000


@pytest.mark.long  # test_joiner_loop.py moves partitions under both label policies
def test_a_label_window_closes_once_when_its_partition_moves(
    kafka: str, fresh_name: Callable[[str], str]
) -> None:
    seed = 22
    dice = random.Random(seed)
    joined = Joined.fresh(kafka, fresh_name, PARTITIONS, spec_of("window"))
    happened = happen(seed, count=60_000, partitions=PARTITIONS)
    joined.send(happened)
    with joiners(joined) as running:
        for instance in ("a", "b", "a"):
            if instance in running.alive:
                running.kill(instance)
            running.start(instance)
            running.wait_for_more(dice.randrange(1, 10_000))
        running.wait(lambda: joined.state.read().lag == 0)
    assert sorted(joined.examples()) == sorted(happened.closed), f"seed {seed}"


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("policy", list(Policy))
@pytest.mark.skipif(not WEEK.is_dir(), reason=f"the sample week is not at {WEEK}")
def test_twenty_kills_during_the_sample_week_change_no_example(
    policy: Policy, kafka: str, fresh_name: Callable[[str], str]
) -> None:
    seed = random.randrange(1 << 30)
    dice = random.Random(seed)
    joined = Joined.fresh(kafka, fresh_name, PARTITIONS, WEEK_SPEC.format(policy=policy.value))
    impressions, clicks = 278_139, 24_829
    expected = impressions + (clicks if policy is Policy.IMMEDIATE else 0)
    stop = threading.Event()
    sending = threading.Thread(
        target=replay,
        args=[joined.settings, [DirectoryLog(WEEK)], 1_800_000, stop],
        kwargs={"topics": joined.topics, "settings": ReplaySettings(speed=5_000)},
    )
    sending.start()
    try:
        with joiners(joined) as running:
            running.start("a")
            running.start("b")
            for death in range(20):
                due = expected * (death + dice.random()) / 21
                running.wait(lambda due=due: joined.state.read().examples >= due)  # type: ignore[misc]
                assert joined.state.read().examples < expected, f"seed {seed}: too late"
                victims = ["a", "b"] if dice.random() < 0.2 else [dice.choice("ab")]
                for victim in victims:
                    running.kill(victim)
                for victim in victims:
                    running.start(victim)
            running.wait(
                lambda: joined.state.read().examples >= expected and not sending.is_alive()
            )
            running.wait(lambda: joined.state.read().lag == 0)
    finally:
        stop.set()
        sending.join()
    _check_week(joined, policy, impressions, clicks, f"seed {seed}")


def _check_week(joined: Joined, policy: Policy, impressions: int, clicks: int, seed: str) -> None:
    found = joined.examples()
    kinds = Counter(kind for _, kind, _, _, _ in found)
    labels = sum(label for _, _, label, _, _ in found)
    shown = [identity for _, kind, _, identity, _ in found if kind != Kind.CLICKED]
    clicked = [identity for _, _, label, identity, _ in found if label]
    assert len(set(shown)) == len(shown) == impressions, seed
    assert len(set(clicked)) == len(clicked) == labels == clicks, seed
    if policy is Policy.IMMEDIATE:
        assert kinds == {Kind.SHOWN: impressions, Kind.CLICKED: clicks}, seed
    else:
        assert kinds == {Kind.CLOSED: impressions}, seed
    end = joined.state.read()
    assert (end.impressions, end.clicks) == (impressions, clicks), seed
    assert (end.late_clicks, end.duplicates, end.dead_letters) == (0, 0, 0), seed
