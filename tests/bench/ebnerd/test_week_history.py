"""Tests the history of clicks of a user, and the choice of events.

The events are made by hand and from a seed, so the sample week is not needed.
"""

from typing import Any

import numpy as np
import pyarrow as pa

from headrace.learner.spec.model_spec import parse_spec
from tests.bench.ebnerd.week import Events
from tests.bench.ebnerd.week_history import RECENT, events_for, recent_clicks

SEED = 7
_SPEC = """
[model]
name = "bags"

[fields.article]
number = 1
transform = "id"
source = "article_id"
"""
_RECENT = f'\n[fields.{RECENT}]\nnumber = 2\ntransform = "bag"\n'


def _events(shown: list[dict[str, Any]], clicks: list[tuple[int, int]]) -> Events:
    """Return a log; clicks: (which impression, when)."""
    ids = pa.array([str(i) for i in range(len(shown))], pa.string())
    clicked = np.array(clicks, np.int64).reshape(-1, 2)
    times = np.array([each["timestamp_ms"] for each in shown], np.int64)
    return Events(shown, ids, ids, times, clicked[:, 0], clicked[:, 1])


def _shown(user: str, article: str, time: int) -> dict[str, Any]:
    return {"user_id": user, "article_id": article, "timestamp_ms": time}


def test_a_click_is_known_after_it_and_to_its_user_alone() -> None:
    shown = [
        _shown("a", "x", 10),
        _shown("b", "y", 10),
        _shown("a", "y", 20),
        _shown("a", "z", 30),
        _shown("a", "w", 31),
        _shown("b", "z", 40),
    ]
    # of the article shown first the click came last; one comes at the very moment of a show
    events = _events(shown, [(2, 25), (0, 30), (3, 50)])
    assert recent_clicks(events) == [[], [], [], ["y"], ["y", "x"], []]
    assert recent_clicks(events, most=1) == [[], [], [], ["y"], ["x"], []]
    assert recent_clicks(_events([], [])) == []


def test_of_any_log_it_is_what_reading_it_in_order_of_time_would_keep() -> None:
    random = np.random.default_rng(SEED)
    times = np.sort(random.integers(0, 300, 400)).tolist()
    shown = [_shown(f"u{random.integers(5)}", f"a{random.integers(30)}", time) for time in times]
    clicks = [(i, times[i] + int(random.integers(0, 60))) for i in range(0, 400, 3)]
    found = recent_clicks(_events(shown, clicks), most=4)
    for i, each in enumerate(shown):
        before = sorted(
            (time, at)
            for at, (which, time) in enumerate(clicks)
            if time < each["timestamp_ms"] and shown[which]["user_id"] == each["user_id"]
        )
        expected = [shown[clicks[at][0]]["article_id"] for _, at in before]
        assert found[i] == expected[-4:], f"seed {SEED}, impression {i}"


def test_only_who_wants_it_gets_it() -> None:
    events = _events([_shown("a", "x", 1), _shown("a", "y", 5)], [(0, 2)])
    plain, with_bag = (parse_spec(text, "x").fields for text in (_SPEC, _SPEC + _RECENT))
    assert events_for(plain, events) is events.impressions
    assert [each[RECENT] for each in events_for(with_bag, events)] == [[], ["x"]]
    assert RECENT not in events.impressions[0]
