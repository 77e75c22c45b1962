"""Faults that a producer makes with the impressions of a while."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from headrace.ingest.examples.batch import Examples, concatenate, reordered
from headrace.ingest.examples.splitting import part_of
from headrace.ingest.features.encoder import Encoded
from headrace.learner.suggestion.sample_stream import Clicks
from tests.bench.guard.guard_streams import GuardStream

UNIT = 1000.0


def _replaced(shown: Examples, part: slice, bad: Examples) -> Examples:
    """Return impressions with others in one stretch; ids and times stay."""
    own = part_of(shown, part.start, part.stop)
    bad = replace(own, features=bad.features)
    before, after = part_of(shown, 0, part.start), part_of(shown, part.stop, len(shown))
    return concatenate([before, bad, after])


def inverted_labels(stream: GuardStream, part: slice) -> GuardStream:
    """Clicked impressions have no click, and the others have one."""
    shown_ms, click_ms = stream.clicks
    made = click_ms.copy()
    late = np.median((click_ms - shown_ms)[click_ms >= 0]).astype(np.int64)
    made[part] = np.where(click_ms[part] >= 0, -1, shown_ms[part] + late)
    return stream._replace(clicks=Clicks(shown_ms, made))


def clicks_everywhere(stream: GuardStream, part: slice) -> GuardStream:
    """Each impression is clicked."""
    shown_ms, click_ms = stream.clicks
    made = click_ms.copy()
    late = np.median((click_ms - shown_ms)[click_ms >= 0]).astype(np.int64)
    made[part] = np.where(click_ms[part] >= 0, click_ms[part], shown_ms[part] + late)
    return stream._replace(clicks=Clicks(shown_ms, made))


def labels_all_0(stream: GuardStream, part: slice) -> GuardStream:
    """No click arrives."""
    made = stream.clicks.click_ms.copy()
    made[part] = -1
    return stream._replace(clicks=Clicks(stream.clicks.shown_ms, made))


def unit_too_large(stream: GuardStream, part: slice) -> GuardStream:
    """The plain number is in thousandths."""
    features = stream.impressions.features
    numbers = features.numbers.copy()
    numbers[part] *= UNIT
    changed = Encoded(features.ids, features.bag_ids, features.bag_offsets, numbers)
    return stream._replace(impressions=replace(stream.impressions, features=changed))


def shuffled_field(stream: GuardStream, part: slice) -> GuardStream:
    """One field has the values of other impressions."""
    features = stream.impressions.features
    ids = features.ids.copy()
    dice = np.random.default_rng(11)
    ids[part, -1] = dice.permutation(ids[part, -1])
    changed = Encoded(ids, features.bag_ids, features.bag_offsets, features.numbers)
    return stream._replace(impressions=replace(stream.impressions, features=changed))


def one_event_repeated(stream: GuardStream, part: slice) -> GuardStream:
    """One impression, with its click, comes again and again."""
    shown_ms, click_ms = stream.clicks
    clicked = part.start + int(np.flatnonzero(click_ms[part] >= 0)[0])
    places = np.full(part.stop - part.start, clicked)
    shown = _replaced(stream.impressions, part, reordered(stream.impressions, places))
    made = click_ms.copy()
    made[part] = shown_ms[part] + (click_ms[clicked] - shown_ms[clicked])
    return stream._replace(impressions=shown, clicks=Clicks(shown_ms, made))


FAULTS: dict[str, Callable[[GuardStream, slice], GuardStream]] = {
    "inverted labels": inverted_labels,
    "unit 1,000 times too large": unit_too_large,
    "shuffled field": shuffled_field,
    "clicks everywhere": clicks_everywhere,
    "labels all 0": labels_all_0,
    "one event repeated": one_event_repeated,
}
