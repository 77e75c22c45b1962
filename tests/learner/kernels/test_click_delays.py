"""A new model does not take shows whose clicks are on their way for negatives."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from headrace.ingest.examples.batch import Kind
from headrace.learner.inputs.click_delays import weigh_shows
from headrace.learner.inputs.example_inputs import INTERCEPT, LabelledColumns
from headrace.learner.kernels.pending_deltas import view_of
from headrace.learner.spec.model_spec import ModelSpec, parse_spec
from headrace.learner.suggestion.delay_mixture import delay_mixture
from headrace.pserver.rows.table import find_or_add
from tests.bench.generated.contenders import learn_spec, spec_text, stream_of
from tests.bench.generated.log_generator import generate, plans

T0_S = 1_700_000_000


def shown_at(seconds: list[float], *, weights: list[float] | None = None) -> LabelledColumns:
    """Shows at these seconds after the start; the last example is a click."""
    count = len(seconds)
    kinds = np.full(count, Kind.SHOWN, np.uint8)
    kinds[-1] = Kind.CLICKED
    times = np.array([1000 * T0_S + round(1000 * each) for each in seconds], np.int64)
    return LabelledColumns(
        kinds,
        np.zeros(count, np.uint8),
        times,
        times,
        np.zeros(0, np.uint64),
        np.array(weights or [], np.float32),
        np.arange(1, count + 1),
    )


def test_shows_weigh_more_with_the_age_of_the_model_and_clicks_always_weigh_the_same() -> None:
    found = weigh_shows(view_of(2), shown_at([0.0, 60.0, 120.0, 6000.0, 30.0]), (60.0,))
    assert found.weights == pytest.approx([0.0, 1 - np.exp(-1), 1 - np.exp(-2), 1.0, 1.0])


def test_clicks_within_the_wait_have_arrived_when_the_first_show_is_learned() -> None:
    found = weigh_shows(view_of(2), shown_at([0.0, 60.0, 30.0]), (60.0,), 30.0)
    assert found.weights == pytest.approx([1 - np.exp(-0.5), 1 - np.exp(-1.5), 1.0])


def test_the_weight_of_an_example_is_multiplied() -> None:
    found = weigh_shows(view_of(2), shown_at([0.0, 60.0, 60.0], weights=[3.0, 2.0, 5.0]), (60.0,))
    assert found.weights == pytest.approx([0.0, 2 * (1 - np.exp(-1)), 5.0])


def test_the_age_is_that_of_the_intercept_so_that_a_restarted_learner_continues() -> None:
    view = view_of(2)
    view.reserve(1)
    place = find_or_add(view.columns, np.uint64(INTERCEPT))
    view.columns.first_seen[place] = T0_S
    later = shown_at([60.0, 120.0, 130.0])
    assert weigh_shows(view, later, (60.0,)).weights == pytest.approx(
        [1 - np.exp(-1), 1 - np.exp(-2), 1.0]
    )
    old = shown_at([60.0 * 20, 60.0 * 21, 60.0 * 22])
    assert weigh_shows(view, old, (60.0,)) is old


def test_nothing_changes_without_a_delay() -> None:
    examples = shown_at([0.0, 60.0])
    assert weigh_shows(view_of(2), examples, ()) is examples


@pytest.mark.parametrize("architecture", ["lr", pytest.param("fm", marks=pytest.mark.long)])
def test_a_new_model_keeps_the_click_rate_while_clicks_are_hours_late(architecture: str) -> None:
    log = generate(plans()[17], 6_000)  # delays of three hours, 2 % of impressions clicked
    text = spec_text(log, architecture)
    spec = parse_spec(text, "m.toml")
    assert max(spec.structure.click_delays_s) > 3_600.0
    stream = stream_of(log, spec)
    first = np.flatnonzero(log.shown_ms < log.shown_ms[0] + 3 * 3_600_000)
    kept = learn_spec(spec, stream).scores[first].mean()
    fallen = learn_spec(without_delay(text), stream).scores[first].mean()
    assert kept == pytest.approx(spec.structure.base_rate, rel=0.3)
    assert fallen < 0.7 * kept


def without_delay(text: str) -> ModelSpec:
    lines = [each for each in text.splitlines() if not each.startswith("click_delay_s")]
    return parse_spec("\n".join(lines), "m.toml")


def test_groups_of_equally_many_clicks_weigh_the_mean_of_theirs() -> None:
    found = weigh_shows(view_of(2), shown_at([0.0, 60.0, 60.0]), (30.0, 600.0))
    assert found.weights == pytest.approx([0.0, 1 - (np.exp(-2) + np.exp(-0.1)) / 2, 1.0])


@pytest.mark.parametrize(
    "delays",
    [
        pytest.param(lambda rng: rng.exponential(3600.0, 3000), id="exponential"),
        pytest.param(lambda rng: 5400.0 * rng.weibull(0.5, 3000), id="Weibull"),
        pytest.param(lambda rng: rng.lognormal(7.0, 1.5, 3000), id="lognormal"),
        pytest.param(
            lambda rng: np.where(rng.random(3000) < 0.75, 1.0, 600.0) * rng.exponential(20.0, 3000),
            id="two kinds",
        ),
    ],
)
def test_a_mixture_has_the_share_of_clicks_that_came_at_any_age(
    delays: Callable[[np.random.Generator], npt.NDArray[np.float64]],
) -> None:
    drawn = delays(np.random.default_rng(3))
    means = delay_mixture(drawn)
    for age_s in np.geomspace(5.0, 80_000.0, 20):
        arrived = np.mean([1 - np.exp(-age_s / mean) for mean in means])
        assert arrived == pytest.approx(float(np.mean(drawn <= age_s)), abs=0.05)


def test_exponential_delays_and_few_clicks_have_their_mean() -> None:
    drawn = np.random.default_rng(4).exponential(60.0, 20_000)
    assert delay_mixture(drawn) == pytest.approx((drawn.mean(),))
    assert delay_mixture(np.array([1.0, 1000.0])) == pytest.approx((500.5,))
    assert delay_mixture(np.array([])) == ()
