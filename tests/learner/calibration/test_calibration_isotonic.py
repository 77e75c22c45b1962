"""Isotonic calibration: many knots, and answers that rise with the model's."""

import math
from dataclasses import replace

import numpy as np
import pytest

from headrace.ingest.examples.batch import Examples
from headrace.ingest.features.spec_text import SpecError
from headrace.learner.calibration.isotonic import IsotonicScaling
from headrace.learner.loop.row_prefetcher import RowPrefetcher
from headrace.learner.spec.calibration_spec import CALIBRATION_NUMBER, Calibration
from headrace.learner.spec.model_spec import ModelSpec, load_spec, parse_spec
from tests.bench.ebnerd.week import WEEK, read_events, run
from tests.effort import seeds
from tests.learner.calibration.calibration_pairs import layer_of, pair
from tests.learner.few_rows import Model, assert_same, drawn
from tests.learner.shipped_specs import MODELS
from tests.learner.streams import BUCKETS, FIELDS, Bench, part, random_examples

ALPHA = 0.3
SECTION = f'[calibration]\nkind = "isotonic"\nalpha = {ALPHA}\n'
KNOTS = np.linspace(-8.0, 4.0, 25)


def _pair() -> tuple[ModelSpec, ModelSpec]:
    return pair(section=SECTION)


def _sigmoid(z: float) -> float:
    return 1.0 / (1.0 + math.exp(-z))


def _rising(gained: np.ndarray, shows: np.ndarray) -> np.ndarray:
    """Return the nearest that rises by a twentieth of the knots' own: by the min-max formula."""
    sizes, count = 1.0 + shows, KNOTS.shape[0]
    sums = np.concatenate(([0.0], np.cumsum(sizes * (0.95 * KNOTS + gained))))
    weights = np.concatenate(([0.0], np.cumsum(sizes)))
    ends, begins = np.meshgrid(np.arange(1, count + 1), np.arange(count))
    size = np.where(begins < ends, weights[ends] - weights[begins], np.nan)
    means = (sums[ends] - sums[begins]) / size
    pooled = [means[: k + 1, k:].min(axis=1).max() for k in range(count)]
    return np.array(pooled) + 0.05 * KNOTS


def _expected(raw: np.ndarray, examples: Examples) -> tuple[list[float], np.ndarray, np.ndarray]:
    """Return calibrated scores of a plain loop, what knots gained, and what they were shown."""
    gained, shows, scores = np.zeros(25), np.zeros(25), []
    for i, p in enumerate(raw):
        z = math.log(p / (1 - p))
        inside = min(max(z, -8.0), 4.0)
        rising = _rising(gained, shows)
        scores.append(_sigmoid(float(np.interp(inside, KNOTS, rising)) + z - inside))
        own = _sigmoid(z + float(np.interp(inside, KNOTS, gained)))
        first = min(int((inside + 8.0) / 0.5), 23)
        share = (inside - KNOTS[first]) / 0.5
        weight = 1.0 if examples.weights is None else float(examples.weights[i])
        squares = (1 - share) ** 2 + share**2
        step = weight * ALPHA * (own - examples.labels[i]) / (1 + 0.25 * ALPHA * squares)
        step /= 1 + 0.5 * ALPHA * squares * own * (1 - own) * max(weight - 1, 0)
        step = min(max(step, -4 / squares), 4 / squares)
        gained[first] -= step * (1 - share)
        gained[first + 1] -= step * share
        shows[first : first + 2] += 1
    return scores, gained, shows


@pytest.mark.parametrize("weighed", [False, True])
def test_isotonic_scores_equal_those_of_a_plain_loop(weighed: bool) -> None:
    spec, bare = _pair()
    examples = random_examples(np.random.default_rng(2), spec, 300, closed=True)
    if weighed:
        weights = np.random.default_rng(3).choice([0.0, 1.0, 3.0], len(examples))
        examples = replace(examples, weights=weights.astype(np.float32))
    bench, alone = Bench(spec), Bench(bare)
    expected, gained, shows = _expected(alone.learn(examples), examples)
    np.testing.assert_allclose(bench.learn(examples), expected, rtol=1e-4)
    rows, layer = bench.rows(), layer_of(bench)
    assert sorted(rows.values[layer, 0].tolist()) == pytest.approx(sorted(gained), abs=1e-4)
    assert sorted(rows.shows[layer].tolist()) == sorted(shows)
    # knots fell somewhere, so something was pooled
    assert np.any(np.diff(0.95 * KNOTS + gained) < 0)
    # the model learned as if nothing stood behind it
    np.testing.assert_array_equal(rows.values[~layer], alone.rows().values)


def test_a_bucket_that_has_the_examples_keeps_its_knots() -> None:
    spec, _ = _pair()
    examples = random_examples(np.random.default_rng(6), spec, 400, closed=True)
    bench = Bench(spec)
    bench.learn(part(examples, 0, 200))
    before, layer = bench.rows(), layer_of(bench)
    ids, values = before.ids[layer], before.values[layer, 0]
    mine = bench.shape.bucket_of(ids) == bench.shape.bucket_of(ids[np.argmax(np.abs(values))])
    assert not mine.all()
    inactive = int(bench.shape.bucket_of(ids[mine])[0])
    bench.learn(part(examples, 200, 400), inactive=(inactive,))
    after = bench.rows()
    then = after.values[[np.flatnonzero(after.ids == each)[0] for each in ids], 0]
    np.testing.assert_array_equal(then[mine], values[mine])
    assert np.any(then[~mine] != values[~mine])


def _taught(rates: np.ndarray, promised: np.ndarray, seed: int) -> tuple[IsotonicScaling, Bench]:
    """Teach the layer impressions that a model promised so much, and that click so often."""
    spec, _ = _pair()
    random = np.random.default_rng(seed)
    bench, layer = Bench(spec), IsotonicScaling(Calibration("isotonic", 0.05), 600_000)
    some = random_examples(random, spec, 1000, closed=True)
    for begin in range(0, rates.shape[0], 1000):
        these = slice(begin, begin + 1000)
        labels = (random.random(1000) < rates[these]).astype(np.uint8)
        examples = replace(some, labels=labels)
        labelled = bench.model._inputs.begin(np.ones(BUCKETS, np.bool_), examples)
        bench.view.reserve(layer.ids.shape[0])
        gaining = bench.pending.reserve()
        layer.learn(
            bench.view, gaining, np.ones(BUCKETS, np.bool_), labelled, promised[these].copy()
        )
    return layer, bench


@pytest.mark.parametrize("seed", seeds(3))
def test_isotonic_scaling_mends_a_curve_that_platt_cannot(seed: int) -> None:
    """Too little where little is promised, too much in the middle, the truth at the top."""
    random = np.random.default_rng(seed)
    promised = random.uniform(0.02, 0.9, 20_000)
    rates = np.interp(promised, [0.02, 0.1, 0.5, 0.9], [0.06, 0.15, 0.2, 0.9])
    layer, bench = _taught(rates, promised, seed)
    asked = np.linspace(0.03, 0.88, 60)
    answers = asked.copy()
    layer.apply(bench.view, answers)
    truth = np.interp(asked, [0.02, 0.1, 0.5, 0.9], [0.06, 0.15, 0.2, 0.9])
    assert np.abs(answers - truth).mean() < 0.05 < np.abs(asked - truth).mean(), seed


@pytest.mark.parametrize("seed", seeds(3))
def test_isotonic_answers_rise_with_the_models_scores(seed: int) -> None:
    random = np.random.default_rng(seed)
    promised = random.uniform(0.001, 0.999, 5000)
    layer, bench = _taught(1.0 - promised, promised, seed)
    asked = np.sort(random.uniform(1e-6, 1 - 1e-6, 2000))
    answers = asked.copy()
    layer.apply(bench.view, answers)
    assert np.all(np.diff(answers) > 0), seed
    assert 0.0 < answers[0] < answers[-1] < 1.0


def test_isotonic_scaling_follows_a_change_of_the_click_rate() -> None:
    promised = np.full(12_000, 0.2)
    rates = np.repeat([0.4, 0.05], 6000)
    layer, bench = _taught(rates, promised, seed=8)
    answer = np.full(1, 0.2)
    layer.apply(bench.view, answer)
    assert answer[0] == pytest.approx(0.05, abs=0.03)


def test_isotonic_knots_are_the_same_in_a_learner_of_few_rows() -> None:
    spec, examples = drawn(3, SECTION)
    whole, few = Model(spec, examples), Model(spec, examples)
    learner = few.learning(most_rows=90)
    whole.run(whole.learning(None))
    few.run(learner)
    assert_same(few.rows(), whole.rows())
    assert np.count_nonzero(few.rows().ids & np.uint64(1023) == CALIBRATION_NUMBER) > 2
    assert isinstance(learner.rows, RowPrefetcher)
    assert learner.rows.usage.dropped > 0
    assert few.written.sent == whole.written.sent


def test_the_isotonic_section_of_a_spec_is_validated_and_in_its_fingerprint() -> None:
    text = FIELDS.format(policy="window")
    spec = parse_spec(text + '[calibration]\nkind = "isotonic"\n', "t")
    platt = parse_spec(text + '[calibration]\nkind = "platt"\n', "t")
    assert spec.calibration == Calibration("isotonic", 0.01)
    assert spec.fingerprint != platt.fingerprint
    with pytest.raises(SpecError, match="isotonic"):
        parse_spec(text + '[calibration]\nkind = "isotone"\n', "t")


@pytest.mark.long
def test_on_a_week_of_traffic_isotonic_answers_are_truer_and_rank_as_well() -> None:
    if not WEEK.is_dir():
        pytest.skip("the sample week may be used for research only, and is not shipped")
    events, text = read_events(WEEK), load_spec(MODELS / "news.toml").text
    outcomes = {
        kind: run(parse_spec(f'{text}\n[calibration]\nkind = "{kind}"\n', "t"), events)
        for kind in ("platt", "isotonic")
    }
    (_, platt), (_, isotonic) = (each.halves for each in outcomes.values())
    assert isotonic.log_loss < platt.log_loss - 0.0003
    assert isotonic.request_auc > platt.request_auc - 0.0002
    assert isotonic.calibration == pytest.approx(1.0, abs=0.01)
    clicked = np.zeros(len(events.impressions))
    clicked[events.clicked] = 1.0
    apart = {}
    for kind, outcome in outcomes.items():
        half = np.arange(clicked.shape[0] // 2, clicked.shape[0])
        tenths = np.array_split(half[np.argsort(outcome.scores[half])], 10)
        gaps = [outcome.scores[each].mean() - clicked[each].mean() for each in tenths]
        apart[kind] = float(np.abs(gaps).mean())
    assert apart["isotonic"] < 0.5 * apart["platt"]
