"""Recent coverage: counts of the last ten minutes, and the fields that they are about."""

from headrace.ingest.features.field_sources import carried_fields, input_fields
from headrace.ingest.features.fields import parse_fields
from headrace.ingest.features.recent_coverage import SLOT_MS, SLOTS, RecentCoverage
from headrace.ingest.features.spec_text import SpecText

SPEC = """
[examples]
weight = "value"
slice_by = ["site", "user_id", "request_id"]
[fields.user]
number = 1
transform = "id"
source = "user_id"
[fields.both]
number = 2
transform = "cross"
of = ["user", "user"]
[fields.hour]
number = 3
transform = "hour"
[fields.tags]
number = 4
transform = "bag"
[fields.price]
number = 5
transform = "number"
[fields.read]
number = 6
transform = "history"
of = "user"
item = "user"
last = 3
"""


class Clock:
    """A clock that a test moves."""

    now_ms = 1_700_000_000_000 // SLOT_MS * SLOT_MS

    def __call__(self) -> int:
        return self.now_ms


def test_only_fields_with_a_value_in_events_are_carried() -> None:
    where = SpecText("test.toml", SPEC)
    fields = parse_fields(where.tables(), where)
    inputs = [("user", "user_id"), ("tags", "tags"), ("price", "price")]
    assert [each[:2] for each in input_fields(fields)] == inputs
    assert [each[:2] for each in carried_fields(fields)] == [
        *inputs,
        ("site (slice_by)", "site"),
        ("value (weight)", "value"),
    ]


def test_shares_are_those_of_recent_events_and_none_without_events() -> None:
    coverage = RecentCoverage(["a", "b"], Clock())
    assert coverage.recent().share("a") is None
    coverage.add(3, [3, 0])
    coverage.add(1, [0, 0])
    found = coverage.recent()
    assert (found.total, found.share("a"), found.share("b")) == (4, 0.75, 0.0)
    assert found.missing == ["b"]


def test_counts_are_forgotten_after_ten_minutes() -> None:
    clock = Clock()
    coverage = RecentCoverage(["a"], clock)
    for _ in range(3 * SLOTS):
        coverage.add(10, [5])
        clock.now_ms += SLOT_MS
    assert coverage.recent().total == 10 * (SLOTS - 1)  # the present slot has none yet
    coverage.add(1, [1])
    assert coverage.recent() == (1 + 10 * (SLOTS - 1), {"a": 1 + 5 * (SLOTS - 1)})
    clock.now_ms += SLOTS * SLOT_MS
    assert coverage.recent().total == 0
    coverage.add(2, [2])
    assert coverage.recent() == (2, {"a": 2})
