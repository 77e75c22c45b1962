"""Features of the time: requests and events of one period have one row, others another."""

import itertools

from headrace.ingest.features.encoder import Encoder
from headrace.learner.spec.model_spec import parse_spec
from headrace.serving.requests.candidates import Candidates

SPEC = """
[model]
name = "source"

[fields.item]
number = 1
transform = "id"

[fields.ten_minutes]
number = 4
transform = "period"
period_s = 600

[fields.item_lately]
number = 5
transform = "cross"
of = ["item", "ten_minutes"]
"""
BEGIN_MS = 1_700_000_400_000
"""Begin of a period."""


def test_a_period_has_the_events_and_the_requests_within_it_only() -> None:
    encoder = Encoder(parse_spec(SPEC, "source.toml").fields)
    times = [BEGIN_MS + 60_000 * minute - early for minute in range(31) for early in (1, 0)]
    events = [{"item": 1, "timestamp_ms": time_ms} for time_ms in times]
    ids = encoder.encode(events).ids
    asked = [Candidates({"timestamp_ms": time_ms}, [{"item": 1}]) for time_ms in times]
    assert [each.encode(encoder, 0).ids[0].tolist() for each in asked] == ids.tolist()
    assert [each.times(0).tolist() for each in asked] == [[time_ms] for time_ms in times]
    own = Candidates({"timestamp_ms": 1}, events)
    assert own.encode(encoder, 0).ids.tolist() == ids.tolist()
    assert own.times(0).tolist() == times
    for column, changes in ((0, 0), (1, 4), (2, 4)):
        pairs = itertools.pairwise(zip(times, ids[:, column].tolist(), strict=True))
        changed = [now_ms for (_, before), (now_ms, now) in pairs if before != now]
        assert changed == [BEGIN_MS + 600_000 * number for number in range(changes)]
