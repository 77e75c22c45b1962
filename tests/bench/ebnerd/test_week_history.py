"""Tests the history of clicks of a user, and the choice of events.

The events are made by hand and from a seed, so the sample week is not needed.
"""

from typing import Any

import numpy as np
import pyarrow as pa

from tests.bench.ebnerd.week import Events
from tests.bench.ebnerd.week_history import recent_clicks

SEED = 7


def _events(shown: list[dict[str, Any]], clicks: list[tuple[int, int]]) -> Events:
    """Return a log; clicks: (which impression, when)."""
    ids = pa.array([str(i) for i in range(len(shown))], pa.string())
    clicked = np.array(clicks, np.int64).reshape(-1, 2)
    times = np.array([each["timestamp_ms"] for each in shown], np.int64)
    return Events(shown, ids, ids, times, clicked[:, 0], clicked[:, 1])


def _shown(user: str, article: str, time: int) -> dict[str, Any]:
    return {"user_id": user, "article_id": article, "timestamp_ms": time}


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
