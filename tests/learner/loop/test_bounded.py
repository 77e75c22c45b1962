"""A learner that holds few rows learns the same model as one with all rows, bit for bit."""

import random
from collections import Counter
from typing import Any

import numpy as np
import pytest

from headrace.ingest.examples.batch import Examples, Kind
from headrace.learner.errors import GroupBroken
from headrace.learner.loop.cached_replica import CachedReplica
from headrace.learner.loop.exchange import DirectExchange
from headrace.learner.loop.learner import Learner
from headrace.learner.loop.row_prefetcher import RowPrefetcher
from headrace.learner.models.sync_group import SyncGroup
from headrace.pserver.errors import Unreachable
from headrace.pserver.keeper.expiry import Expiry
from headrace.pserver.rows.row_codec import FoldedRows
from headrace.pserver.store import BucketAnswer
from tests.effort import LONG, seeds
from tests.learner.few_rows import Model, Silent, Trouble, assert_same, drawn
from tests.learner.streams import COUNT, PROBABILITY, part, random_examples, random_spec

MACHINE = 'architecture = "factorization_machine"\ndimensions = 3\n'
DEEPFM = 'architecture = "deepfm"\ndimensions = 2\nlayers = [4]\nmini_batch = 16\n'
TORCH = "deep models are an extra: pip install headrace[deep]"


@pytest.mark.parametrize("growth", ["", COUNT, PROBABILITY], ids=["all", "count", "probability"])
@pytest.mark.parametrize("model", ["", MACHINE, DEEPFM], ids=["logistic", "machine", "deepfm"])
def test_a_learner_of_few_rows_gives_the_model_of_all_rows(model: str, growth: str) -> None:
    if model == DEEPFM:
        pytest.importorskip("torch", reason=TORCH)
    for seed in seeds((2 if growth else 4) if LONG else 1):
        spec, examples = drawn(seed, growth, model)
        whole, few = Model(spec, examples), Model(spec, examples)
        learner = few.learning(most_rows=60)
        whole.run(whole.learning(None))
        few.run(learner)
        assert_same(few.rows(), whole.rows())
        assert isinstance(learner.rows, RowPrefetcher)
        usage = learner.rows.usage
        assert usage.pulled > 0
        assert usage.dropped > 0
        assert (usage.stops > 0) == bool(spec.statistics), f"seed {seed}"
        assert few.written.sent == whole.written.sent


def once(examples: Examples) -> dict[int, tuple[int, int]]:
    """Shows and clicks of each id of a single field."""
    found: dict[int, tuple[int, int]] = {}
    for ids, kind, label in zip(
        examples.features.ids.tolist(), examples.kinds, examples.labels, strict=True
    ):
        for each in ids:
            shows, clicks = found.get(each, (0, 0))
            found[each] = shows + (kind != Kind.CLICKED), clicks + int(label)
    return found


def assert_once(model: Model, examples: Examples) -> None:
    """Every example counts once in each of its rows."""
    rows, expected = model.rows(), once(examples)
    places = {int(row): place for place, row in enumerate(rows.ids.tolist())}
    found = {row: (int(rows.shows[places[row]]), int(rows.clicks[places[row]])) for row in expected}
    assert found == expected


@pytest.mark.parametrize("statistics", [True, False])
@pytest.mark.parametrize("seed", [0, 1, 4] if LONG else [0, 4])
def test_under_random_faults_a_cached_learner_counts_every_example_once(
    seed: int, statistics: bool
) -> None:
    spec, examples = drawn(seed if statistics else seed + 2)
    dice = random.Random(seed)
    trouble = Trouble(dice, (spec, examples), dice.choice([1, 60, 150]))
    trouble.run()
    model, learner = trouble.model, trouble.learner
    assert_once(model, examples)
    held = settled(learner, model).table
    assert len(held) > 0
    assert_same(held.everything().existing(), standing(model, held.ids))
    assert_same(learner.view.everything().existing(), standing(model, held.ids))


def settled(learner: Learner, model: Model) -> CachedReplica:
    """Let all that is under way arrive; return the rows that the learner holds."""
    for _ in range(60):
        model.now_ms += 20
        learner.step(0.0)
    assert isinstance(learner.replica, CachedReplica)
    return learner.replica


def standing(model: Model, ids: Any) -> FoldedRows:
    """FoldedRows as a replica has them that begins now."""
    table = model.replica().table
    places = table.find(ids)
    return table.take(places[places >= 0]).existing()


def test_rows_that_a_keeper_deletes_are_deleted_here() -> None:
    spec, examples = drawn(0, COUNT)
    model = Model(spec, examples, expiry=Expiry(after_s=600, interval_ms=200))
    learner = model.learning(most_rows=120)
    model.run(learner)
    held = settled(learner, model).table
    deleted = ~held.everything().exist()
    assert deleted.any()
    assert_same(held.everything().existing(), standing(model, held.ids))


class Group(SyncGroup):
    """A group whose steps cannot be undone."""

    def leave(self, why: str) -> None:
        raise GroupBroken(0, 1, why)


def test_a_group_ends_when_a_batch_must_be_read_again() -> None:
    spec, examples = drawn(0)
    model = Model(spec, examples)
    store = Silent(model.store, random.Random(3))
    learner = model.learning(60, store, group=Group())
    assert isinstance(learner.rows, RowPrefetcher)
    pull, usage = learner.rows.pull_statistics, learner.rows.usage

    def once_unanswered(*asked: Any) -> None:
        store.share = float(usage.stops == 2)
        pull(*asked)

    setattr(learner.rows, "pull_statistics", once_unanswered)  # noqa: B010 (mypy)
    with pytest.raises(GroupBroken, match="must be read again"):
        model.run(learner)


class LateAnswers(DirectExchange):
    """Pushes at once; the answers come at every fourth question."""

    asked = 0

    def receive(self) -> list[BucketAnswer | Unreachable] | None:
        self.asked += 1
        return super().receive() if self.asked % 4 == 0 else None


def test_rows_pulled_while_a_push_is_awaited_do_not_count_its_examples_twice() -> None:
    spec, examples = drawn(2)
    model = Model(spec, examples, batch=8)
    learner = model.learning(60, exchange=LateAnswers(model.store))
    expected: Counter[int] = Counter()
    learned = 0
    for _ in range(40 * len(model.records)):
        model.now_ms += 20
        learner.step(0.0)
        begin, learned = learned, learner.figures.examples
        for row, (count, _) in once(part(examples, begin, learned)).items():
            expected[row] += count
        shows = dict(zip(learner.view.ids.tolist(), learner.view.columns.shows, strict=False))
        for row, total in expected.items():
            assert shows.get(row, total) == total
        if model.all_learned():
            break
    assert model.all_learned()
    assert isinstance(learner.rows, RowPrefetcher)
    assert learner.rows.usage.pulled > learner.rows.usage.dropped > 0


@pytest.mark.parametrize("seed", seeds(2))
def test_pushes_of_another_learner_reach_the_cache_by_poll_and_by_pull(seed: int) -> None:
    spec, examples = drawn(seed)
    model = Model(spec, examples, batch=8)
    # both learn the same, as partitions of their own: rows are the same, and more than one's
    learner, other = model.learning(most_rows=200), model.learning(None, partition=1)
    for _ in range(20 * len(model.records)):
        model.now_ms += model.dice.choice([0, 0, 31])
        learner.step(0.0)
        if model.dice.random() < 0.5:
            other.step(0.0)
    assert other.figures.examples == learner.figures.examples == len(examples), f"seed {seed}"
    assert learner.finish(model.now_ms) and other.finish(model.now_ms)
    held = settled(learner, model).table
    assert_same(held.everything().existing(), standing(model, held.ids))
    assert_same(learner.view.everything().existing(), standing(model, held.ids))


def test_rows_that_move_while_a_mini_batch_is_gathered_are_found_again() -> None:
    pytest.importorskip("torch", reason=TORCH)
    dice = np.random.default_rng(0)
    spec = random_spec(dice, "window", statistics=True, model=DEEPFM)
    examples = random_examples(dice, spec, 400, closed=True)
    whole, few = Model(spec, examples, batch=20), Model(spec, examples, batch=20)
    learner = few.learning(most_rows=150)
    assert isinstance(learner.rows, RowPrefetcher)
    pull, usage = (learner.rows.pull_statistics, learner.rows.usage)
    dropped = []

    def watched(*of: Any) -> None:
        before = usage.dropped
        pull(*of)
        dropped.append(usage.dropped - before)

    setattr(learner.rows, "pull_statistics", watched)  # noqa: B010 (mypy)
    whole.run(whole.learning(None))
    few.run(learner)
    assert any(dropped)
    assert_same(few.rows(), whole.rows())
