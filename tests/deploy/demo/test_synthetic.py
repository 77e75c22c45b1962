"""The synthetic stream: its truth is true, it moves, and a seed gives it again."""

from dataclasses import replace

import numpy as np
import pytest

from headrace.deploy.demo.synthetic import SyntheticEvents, SyntheticSite, SyntheticStream

START_MS = 1_700_000_000_000
SEEDS = (1, 2, 3)


def happened(
    seed: int, seconds: int, requests_s: int = 200, world: SyntheticSite | None = None
) -> SyntheticEvents:
    """Everything of so many seconds and of the draining after them."""
    stream = SyntheticStream(world or SyntheticSite(), seed, START_MS)
    steps = [stream.step(stream.now_ms + 1000, requests_s) for _ in range(seconds)]
    while stream.pending:
        steps.append(stream.step(stream.now_ms + 1000, 0))
    return type(steps[0])(
        [event for step in steps for event in step.impressions],
        np.concatenate([step.truth for step in steps]),
        [event for step in steps for event in step.clicks],
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_synthetic_clicks_are_calibrated_at_every_true_probability(seed: int) -> None:
    all_of_it = happened(seed, 60)
    clicked = {event["impression_id"] for event in all_of_it.clicks}
    labels = np.array([event["impression_id"] in clicked for event in all_of_it.impressions])
    level = np.digitize(all_of_it.truth, np.quantile(all_of_it.truth, np.arange(0.1, 1, 0.1)))
    for tenth in range(10):
        truth, label = all_of_it.truth[level == tenth], labels[level == tenth]
        deviation = np.sqrt((truth * (1 - truth)).sum())
        assert abs(label.sum() - truth.sum()) < 4.5 * deviation, f"seed {seed}, tenth {tenth}"


def test_a_synthetic_stream_repeats_from_its_seed_and_calls() -> None:
    first, again, other = happened(7, 5), happened(7, 5), happened(8, 5)
    assert first.impressions == again.impressions
    assert first.clicks == again.clicks
    assert first.impressions != other.impressions


@pytest.mark.parametrize("seed", SEEDS)
def test_every_click_follows_its_impression_within_the_longest_delay_and_comes_once(
    seed: int,
) -> None:
    world = SyntheticSite()
    all_of_it = happened(seed, 20, world=world)
    shown_ms = {event["impression_id"]: event["timestamp_ms"] for event in all_of_it.impressions}
    delays = [e["timestamp_ms"] - shown_ms[e["impression_id"]] for e in all_of_it.clicks]
    assert len(shown_ms) == len(all_of_it.impressions)
    assert len({event["impression_id"] for event in all_of_it.clicks}) == len(all_of_it.clicks)
    assert min(delays) > 0, f"seed {seed}"
    assert max(delays) <= 1000 * world.longest_delay_s + 1, f"seed {seed}"


@pytest.mark.parametrize("seed", SEEDS)
def test_most_synthetic_items_of_the_first_minute_are_gone_in_the_third(seed: int) -> None:
    events = happened(seed, 180, requests_s=20).impressions
    minute = [
        {e["item_id"] for e in events if start <= (e["timestamp_ms"] - START_MS) / 60_000 < end}
        for start, end in ((0, 1), (2.5, 3))
    ]
    assert len(minute[0] & minute[1]) < 0.5 * len(minute[1]), f"seed {seed}"


def test_a_request_shows_different_items_of_one_user_at_ascending_positions() -> None:
    requests: dict[str, list[dict[str, object]]] = {}
    for event in happened(5, 5).impressions:
        requests.setdefault(event["request_id"], []).append(event)
    for slate in requests.values():
        assert [event["position"] for event in slate] == list(range(1, SyntheticSite().slate + 1))
        assert len({event["item_id"] for event in slate}) == len(slate)
        assert len({(event["user_id"], event["device"]) for event in slate}) == 1


@pytest.mark.parametrize("seed", SEEDS)
def test_a_sudden_drift_of_the_synthetic_site_keeps_items_and_changes_appeals(seed: int) -> None:
    still = SyntheticSite(lifetime_s=1e9, wander_s=1e9, taste_spread=0.0)
    turned = replace(still, overturned_after_s=30.0)

    def likings(world: SyntheticSite) -> dict[str, tuple[float, float]]:
        all_of_it = happened(seed, 60, world=world)
        late = np.array(
            [each["timestamp_ms"] > START_MS + 30_000 for each in all_of_it.impressions]
        )
        items = np.array([each["item_id"] for each in all_of_it.impressions])
        return {
            item: tuple(all_of_it.truth[(items == item) & (late == half)].mean() for half in (0, 1))
            for item in np.unique(items).tolist()
        }

    calm, moved = likings(still), likings(turned)
    assert calm.keys() == moved.keys(), f"seed {seed}"
    before, after = np.array(list(calm.values())).T
    assert np.corrcoef(before, after)[0, 1] > 0.99, f"seed {seed}"
    before, after = np.array(list(moved.values())).T
    assert abs(np.corrcoef(before, after)[0, 1]) < 0.6, f"seed {seed}"


def test_a_postponed_stream_has_the_events_of_one_that_began_later() -> None:
    world = SyntheticSite(overturned_after_s=2)
    early = SyntheticStream(world, 1, START_MS)
    early.postpone(START_MS + 60_000)
    early.postpone(START_MS)  # never earlier
    late = SyntheticStream(world, 1, START_MS + 60_000)
    for second in range(61, 65):
        shown, expected = (each.step(START_MS + 1000 * second, 20) for each in (early, late))
        assert (shown.truth == expected.truth).all()
        times = [event["timestamp_ms"] for event in shown.impressions]
        assert times == [event["timestamp_ms"] for event in expected.impressions]
