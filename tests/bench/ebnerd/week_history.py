"""Adds each user's earlier clicks to the events of the week, for a model of interests (DIN).

The events of the week do not contain them; an application would send them with each impression. An
impression gets the clicks with a time before its own, never those of the same moment or later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from headrace.ingest.features.fields import FieldSet
    from tests.bench.ebnerd.week import Events

RECENT = "recent"
"""Raw field of an event: articles that its user clicked before, the latest last."""
MOST = 20
"""Articles that it names; older ones are forgotten."""


def events_for(fields: FieldSet, events: Events) -> list[dict[str, Any]]:
    """Return the impressions as `fields` want them: with RECENT only where a bag is made of it."""
    if all(bag.source != RECENT for bag in fields.bags):
        return events.impressions
    return [
        {**shown, RECENT: articles}
        for shown, articles in zip(events.impressions, recent_clicks(events), strict=True)
    ]


def recent_clicks(events: Events, most: int = MOST) -> list[list[str]]:
    """Return, of each impression, what its user clicked before it was shown, the latest last."""
    if not events.impressions:
        return []
    names = pa.array([each["user_id"] for each in events.impressions])
    users = names.dictionary_encode().indices.to_numpy().astype(np.int64)
    articles = [each["article_id"] for each in events.impressions]
    times = np.concatenate((events.shown_ms, events.clicked_ms))
    first_ms, span = times.min(), times.max() - times.min() + 1
    # one number for user and time: clicks of one user are adjacent, in order of time
    clicks = users[events.clicked] * span + (events.clicked_ms - first_ms)
    order = np.argsort(clicks, kind="stable")
    clicks, clicked = clicks[order], events.clicked[order].tolist()
    ends = np.searchsorted(clicks, users * span + (events.shown_ms - first_ms))  # strictly before
    begins = np.maximum(np.searchsorted(clicks, users * span), ends - most)
    return [
        [articles[each] for each in clicked[begin:end]]
        for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)
    ]
