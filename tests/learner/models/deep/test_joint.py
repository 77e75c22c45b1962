"""Learners that step their layers together learn as one learner with all their examples."""

import itertools
import random
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from torch.distributed import HashStore  # type: ignore[attr-defined]

from headrace.deploy.local.services.ports import free_port
from headrace.ingest.examples.batch import Examples, reordered
from headrace.learner.errors import GroupBroken
from headrace.learner.models.deep.process_group import GroupConfig, ProcessGroup, join_group
from headrace.learner.models.deep.synchronous_layers import SynchronousLayers
from headrace.learner.models.sync_group import MiniBatchEvidence
from headrace.pserver.rows.deltas import RowDeltas
from tests.learner.models.deep.joining import EXAMPLES, MINI_BATCH, PATIENCE_S, member, spec_of
from tests.learner.streams import COUNT, Bench, part, random_examples, random_spec

DENSE, ROUNDS = 1001, 5


def layers_of(bench: Bench) -> np.ndarray:
    """Gains of the chunks, as their learner would push them, by id."""
    deltas = bench.gained()
    return np.asarray(deltas.values[deltas.ids & np.uint64(1023) == DENSE].astype(np.float64))


def assert_same_gains(got: np.ndarray, expected: np.ndarray) -> None:
    """Compare each column, such as the weights, by its largest value.

    The rows of ids move by about 1e-6 between learners that do not see them. This and rounding
    change all values of a column by amounts of the same size, also the small ones: at most 2e-4 of
    the largest in 320 runs.
    """
    bounds = 2e-3 * np.abs(expected).max(axis=0)
    np.testing.assert_array_less(np.abs(got - expected), np.broadcast_to(bounds + 1e-9, got.shape))


def stream(seed: int, examples: int = EXAMPLES) -> Examples:
    return random_examples(np.random.default_rng(seed), spec_of(MINI_BATCH), examples, closed=True)


def at_once(*works: Callable[[], object]) -> None:
    """Do these, each in a thread; raise what the first of them raised."""
    failures: list[BaseException] = []

    def guarded(work: Callable[[], object]) -> None:
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
def test_pushes_of_a_group_sum_to_the_steps_of_one_learner_with_all_examples(
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
    assert_same_gains(np.sum(shares, axis=0), expected)
    for each in joint:
        assert each._gained.tobytes() == joint[0]._gained.tobytes()
        assert not each.busy


def test_an_idle_member_takes_the_step_of_the_others() -> None:
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
    one.learn(reordered(examples, np.array(first)))
    for number in (1, 2):
        one.learn(part(examples, number * MINI_BATCH, (number + 1) * MINI_BATCH))
    shares = layers_of(benches[0]) + layers_of(benches[1])
    assert_same_gains(shares, layers_of(one))


def test_a_bucket_that_has_the_examples_contributes_nothing_to_the_round() -> None:
    examples = stream(4)
    benches, joint = group(2, "adagrad")
    inactive = tuple(range(0, 16, 2))

    def learn() -> None:
        benches[0].learn(part(examples, 0, MINI_BATCH), inactive)

    at_once(learn, lambda: joint[1].idle(benches[1].view))
    deltas = benches[0].gained()
    layers = deltas.ids[deltas.ids & np.uint64(1023) == DENSE]
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


def refusing(*refused: int) -> Callable[[MiniBatchEvidence], str | None]:
    """An inspection that refuses these mini-batches, counted from 0."""
    seen = itertools.count()
    return lambda evidence: "refused" if next(seen) in refused else None


@pytest.mark.parametrize(
    ("architecture", "policy", "dense", "growth"),
    [
        ("deepfm", "immediate", "adagrad", ""),
        ("deepfm", "window", "sgd", PLATT),
        ("dcn_v2", "window", "adagrad", COUNT),
    ],
)
def test_a_mini_batch_refused_before_its_round_leaves_no_trace_in_rows_or_layers(
    architecture: str, policy: str, dense: str, growth: str
) -> None:
    random = np.random.default_rng(8)
    model = JOINT.format(architecture=architecture)
    growth += DENSE_SECTION.format(dense=dense)
    spec = random_spec(random, policy, statistics=policy == "window", growth=growth, model=model)
    examples = random_examples(random, spec, 320, closed=policy == "window")
    with_it, without = Bench(spec), Bench(spec)
    joint = [alone(each) for each in (with_it, without)]
    joint[0].inspect_with(refusing(8))
    before, refused, after = (0, 128), (128, 144), (144, 160)
    first = with_it.learn(part(examples, *before))
    without.learn(part(examples, *before))
    scores = with_it.learn(part(examples, 128, 160))
    rest = without.learn(part(examples, *after))
    assert joint[0].quarantined() == [(0, 16, "refused")]
    assert joint[0].quarantined() == []
    assert np.isfinite(first).any()
    assert np.isnan(scores[: refused[1] - refused[0]]).all()
    if COUNT not in growth:  # sightings of a refused mini-batch stay counted
        np.testing.assert_array_equal(scores[16:], rest)
        for mine, others in zip(rows_in_use(with_it), rows_in_use(without), strict=True):
            np.testing.assert_array_equal(mine, others)
        for mine, others in zip(with_it.gained(), without.gained(), strict=True):
            np.testing.assert_array_equal(mine, others)
        assert joint[0]._gained.tobytes() == joint[1]._gained.tobytes()


def rows_in_use(bench: Bench) -> RowDeltas:
    """The rows of a view that were ever seen."""
    rows = bench.rows()
    return rows.chosen(rows.last_seen > 0)


def test_a_refused_mini_batch_reaches_no_other_member_and_stops_none() -> None:
    examples = stream(8, 4 * MINI_BATCH)
    benches, joint = group(2, "adagrad")
    joint[0].inspect_with(refusing(0))
    at_once(
        lambda: benches[0].learn(part(examples, 0, 2 * MINI_BATCH)),
        lambda: benches[1].learn(part(examples, 2 * MINI_BATCH, 4 * MINI_BATCH)),
    )
    one = member(spec_of(3 * MINI_BATCH, synchronous=False))
    second = [*range(MINI_BATCH, 2 * MINI_BATCH), *range(3 * MINI_BATCH, 4 * MINI_BATCH)]
    one.learn(part(examples, 2 * MINI_BATCH, 3 * MINI_BATCH))
    one.learn(reordered(examples, np.array(second)))
    shares = layers_of(benches[0]) + layers_of(benches[1])
    assert_same_gains(shares, layers_of(one))
    assert joint[0]._gained.tobytes() == joint[1]._gained.tobytes()
    assert [each.quarantined() for each in joint] == [[(0, MINI_BATCH, "refused")], []]


def test_an_inspection_sees_scores_labels_and_the_largest_gradient_of_each_mini_batch() -> None:
    seen: list[MiniBatchEvidence] = []
    bench = member(spec_of(MINI_BATCH))
    alone(bench).inspect_with(seen.append)
    examples = stream(8, 2 * MINI_BATCH)
    scores = bench.learn(examples)
    np.testing.assert_array_equal(np.concatenate([each.scores for each in seen]), scores)
    np.testing.assert_array_equal(np.concatenate([each.labels for each in seen]), examples.labels)
    assert all(each.scored.all() and 0.0 < each.largest_gradient < 1e3 for each in seen)


def alone(bench: Bench) -> SynchronousLayers:
    """A group of one."""
    together = ProcessGroup(HashStore(), GroupConfig(0, 1))
    joint: SynchronousLayers = bench.model.step_together(together)  # type: ignore[attr-defined]
    return joint


def test_the_death_of_a_member_process_ends_the_group() -> None:
    port, rounds = free_port(), 2
    other = subprocess.Popen(
        [
            *(sys.executable, "-m", "tests.learner.models.deep.joining"),
            *("1", "2", str(port), str(rounds)),
        ],
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
        assert_same_gains(shares, layers_of(one))
        with pytest.raises(GroupBroken, match="learner 0 of a synchronous group of 2"):
            joint.idle(bench.view)
    finally:
        other.kill()
        other.wait()
