"""Learners that step their layers together are one learner with the joined batch."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from torch.distributed import HashStore  # type: ignore[attr-defined]

from headrace.deploy.local.services.ports import free_port
from headrace.ingest.examples.batch import Kind
from headrace.ingest.features.spec_text import SpecError
from headrace.learner.errors import GroupBroken
from headrace.learner.models.deep.process_group import GroupConfig, ProcessGroup, join_group
from tests.learner.joining import EXAMPLES, MINI_BATCH, PATIENCE_S, member, spec_of
from tests.learner.streams import (
    COUNT,
    PROBABILITY,
    Bench,
    part,
    random_examples,
    random_spec,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.ingest.examples.batch import Examples
    from headrace.learner.models.deep.synchronous_layers import SynchronousLayers

DENSE, ROUNDS = 1001, 5


def layers_of(bench: Bench) -> np.ndarray:
    """What the chunks gained, as their learner would push it, by id."""
    gains = bench.gained()
    return np.asarray(gains.values[gains.ids & np.uint64(1023) == DENSE].astype(np.float64))


def stream(seed: int, examples: int = EXAMPLES) -> Examples:
    return random_examples(np.random.default_rng(seed), spec_of(MINI_BATCH), examples, closed=True)


def at_once(*works: Callable[[], None]) -> None:
    """Do these, each in a thread; raise what the first of them raised."""
    failures: list[BaseException] = []

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as failure:  # noqa: BLE001
            failures.append(failure)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def group(size: int, optimizer: str, timeout_s: float = 60.0) -> tuple[list[Bench], list[Any]]:
    """Learners that have met, and who takes part in rounds for each."""
    store, benches = HashStore(), [member(spec_of(MINI_BATCH, optimizer)) for _ in range(size)]
    joint: list[SynchronousLayers | None] = [None] * size

    def join(rank: int) -> None:
        together = ProcessGroup(store, GroupConfig(rank, size, timeout_s=timeout_s))
        joint[rank] = benches[rank].model.step_together(together)  # type: ignore[attr-defined]

    at_once(*(lambda rank=rank: join(rank) for rank in range(size)))
    return benches, joint


@pytest.mark.parametrize("optimizer", ["adagrad", "sgd"])
@pytest.mark.parametrize("size", [2, 4])
def test_what_they_push_adds_up_to_the_steps_of_one_learner_with_the_joined_batch(
    size: int, optimizer: str
) -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    joined = size * MINI_BATCH
    examples = stream(seed, ROUNDS * joined)
    benches, joint = group(size, optimizer)

    def learn(rank: int) -> None:
        for number in range(ROUNDS):
            begin = number * joined + rank * MINI_BATCH
            benches[rank].learn(part(examples, begin, begin + MINI_BATCH))
        joint[rank].idle(benches[rank].view)

    at_once(*(lambda rank=rank: learn(rank) for rank in range(size)))
    one = member(spec_of(joined, optimizer, synchronous=False))
    one.learn(examples)
    expected, shares = layers_of(one), [layers_of(each) for each in benches]
    assert np.abs(expected).max() > 0.01
    np.testing.assert_allclose(sum(shares), expected, rtol=2e-3, atol=5e-5)
    for each in joint:
        assert each._gained.tobytes() == joint[0]._gained.tobytes()
        assert not each.busy


def test_one_that_has_nothing_takes_the_others_step() -> None:
    examples = stream(3)
    benches, joint = group(2, "adagrad")

    def learn() -> None:
        benches[0].learn(part(examples, 0, 3 * MINI_BATCH))
        joint[0].idle(benches[0].view)

    def wait() -> None:
        benches[1].learn(part(examples, 3 * MINI_BATCH, 4 * MINI_BATCH))
        for _ in range(3):
            joint[1].idle(benches[1].view)

    at_once(learn, wait)
    one = member(spec_of(4 * MINI_BATCH, synchronous=False))
    first = [*range(MINI_BATCH), *range(3 * MINI_BATCH, 4 * MINI_BATCH)]
    # the first round is of both, then two of one alone
    one.learn(chosen(examples, first))
    for number in (1, 2):
        one.learn(part(examples, number * MINI_BATCH, (number + 1) * MINI_BATCH))
    shares = layers_of(benches[0]) + layers_of(benches[1])
    np.testing.assert_allclose(shares, layers_of(one), rtol=2e-3, atol=5e-5)


def test_a_bucket_that_has_the_examples_brings_nothing_to_the_round() -> None:
    examples = stream(4)
    benches, joint = group(2, "adagrad")
    inactive = tuple(range(0, 16, 2))

    def learn() -> None:
        benches[0].learn(part(examples, 0, MINI_BATCH), inactive)

    at_once(
        learn,
        lambda: joint[1].idle(benches[1].view),
    )
    gains = benches[0].gained()
    layers = gains.ids[gains.ids & np.uint64(1023) == DENSE]
    assert layers.size
    assert not set(benches[0].shape.bucket_of(layers).tolist()) & set(inactive)
    skipped = np.isin(benches[0].shape.bucket_of(joint[0].ids), inactive)
    assert skipped.any()
    assert not joint[1]._gained[:, skipped].any()


JOINT = """
architecture = "{architecture}"
dimensions = 3
layers = [4]
init_scale = 0.3
mini_batch = 16
synchronous = true
"""
DENSE_SECTION = '[optimizer.dense]\nname = "{dense}"\nalpha = 0.05\n'
PLATT = '[calibration]\nkind = "platt"\n'


@pytest.mark.parametrize(
    ("architecture", "policy", "dense", "growth"),
    [
        ("deepfm", "immediate", "adagrad", COUNT),
        ("deepfm", "window", "sgd", PROBABILITY + PLATT),
        ("dcn_v2", "immediate", "sgd", PLATT),
    ],
)
def test_a_rehearsal_shows_what_learning_does_and_leaves_no_trace(
    architecture: str, policy: str, dense: str, growth: str
) -> None:
    random = np.random.default_rng(8)
    model = JOINT.format(architecture=architecture)
    growth += DENSE_SECTION.format(dense=dense)
    spec = random_spec(random, policy, statistics=True, growth=growth, model=model)
    examples = random_examples(random, spec, 600, closed=policy == "window")
    rehearsed, plain = Bench(spec), Bench(spec)
    joint = [alone(each) for each in (rehearsed, plain)]
    active = np.ones(rehearsed.shape.buckets, np.bool_)
    largest_seen = 0.0
    for begin in range(0, len(examples), 100):
        batch = part(examples, begin, begin + 100)
        scores, largest = joint[0].rehearse(rehearsed.view, active, batch)
        learned = rehearsed.learn(batch)
        # the group's sums are rounded elsewhere than one learner's
        np.testing.assert_allclose(scores, learned, rtol=1e-4, atol=1e-6)
        gained = np.abs(rehearsed.gained().values).max()
        assert largest == pytest.approx(gained, rel=1e-3)
        largest_seen = max(largest_seen, largest)
        np.testing.assert_array_equal(plain.learn(batch), learned)
    assert largest_seen > 0.1
    for mine, others in zip(rehearsed.rows(), plain.rows(), strict=True):
        np.testing.assert_array_equal(mine, others)
    assert joint[0]._gained.tobytes() == joint[1]._gained.tobytes()


def alone(bench: Bench) -> SynchronousLayers:
    """A group of one."""
    together = ProcessGroup(HashStore(), GroupConfig(0, 1))
    joint: SynchronousLayers = bench.model.step_together(together)  # type: ignore[attr-defined]
    return joint


def test_a_rehearsal_asks_nobody() -> None:
    benches, joint = group(2, "adagrad", timeout_s=3.0)
    at_once(*(lambda rank=rank: joint[rank].idle(benches[rank].view) for rank in range(2)))
    active = np.ones(benches[0].shape.buckets, np.bool_)
    few = part(stream(8), 0, MINI_BATCH)
    for _ in range(3):
        scores, _ = joint[0].rehearse(benches[0].view, active, few)
        assert np.isfinite(scores[few.kinds != Kind.CLICKED]).all()
    at_once(
        lambda: joint[0].idle(benches[0].view),
        lambda: joint[1].idle(benches[1].view),
    )
    assert not joint[0]._gained.any()


@pytest.mark.timeout(300)
def test_a_learner_in_another_process_steps_too_and_its_death_ends_the_group() -> None:
    port, rounds = free_port(), 2
    other = subprocess.Popen(
        [sys.executable, "-m", "tests.learner.joining", "1", "2", str(port), str(rounds)],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        bench = member(spec_of(MINI_BATCH))
        group = join_group(GroupConfig(0, 2, port=port, timeout_s=PATIENCE_S))
        joint = bench.model.step_together(group)  # type: ignore[attr-defined]
        examples = stream(7)
        for number in range(rounds):
            begin = 2 * number * MINI_BATCH
            bench.learn(part(examples, begin, begin + MINI_BATCH))
        said, _ = other.communicate(timeout=PATIENCE_S)
        theirs = np.array([float.fromhex(each) for each in said.split()])
        one = member(spec_of(2 * MINI_BATCH, synchronous=False))
        one.learn(part(examples, 0, 2 * rounds * MINI_BATCH))
        shares = layers_of(bench)
        shares += theirs.reshape(shares.shape)
        np.testing.assert_allclose(shares, layers_of(one), rtol=2e-3, atol=5e-5)
        with pytest.raises(GroupBroken, match="learner 0 of a group of 2"):
            joint.idle(bench.view)
    finally:
        other.kill()
        other.wait()


@pytest.mark.parametrize(
    ("optimizer", "line"),
    [
        ('name = "ftrl"\n', "sgd or adagrad"),
        ('name = "adagrad"\ndecay_per_day = 0.1\n', "no decay"),
    ],
)
def test_what_does_not_split_by_gradients_is_refused_with_its_line(
    optimizer: str, line: str
) -> None:
    with pytest.raises(SpecError, match=rf"test.toml:\d+: expected {line}.*synchronous = true"):
        spec_of(8, more=optimizer)


def test_a_spec_without_it_keeps_its_fingerprint() -> None:
    without = spec_of(8, synchronous=False)
    assert without.structure.agreed().keys().isdisjoint({"synchronous"})
    assert spec_of(8).fingerprint != without.fingerprint


def chosen(examples: Examples, which: list[int]) -> Examples:
    """The examples at these indexes, one after the other."""
    from headrace.ingest.features.encoder import Encoded

    places, features = np.array(which), examples.features
    bags = (features.bag_offsets.shape[0] - 1) // len(examples)
    starts = [slice(*features.bag_offsets[[i, i + 1]]) for w in which
              for i in range(w * bags, (w + 1) * bags)]  # fmt: skip
    lengths = [each.stop - each.start for each in starts]
    return replace(
        examples,
        kinds=examples.kinds[places],
        labels=examples.labels[places],
        event_ms=examples.event_ms[places],
        shown_ms=examples.shown_ms[places],
        append_ms=examples.append_ms[places],
        impression_ids=examples.impression_ids.take(places),
        request_ids=examples.request_ids.take(places),
        features=Encoded(
            features.ids[places],
            np.concatenate([features.bag_ids[each] for each in starts]),
            np.array([0, *np.cumsum(lengths)], features.bag_offsets.dtype),
            features.numbers[places],
        ),
    )
