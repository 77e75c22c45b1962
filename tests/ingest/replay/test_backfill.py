"""A log of the past is refused where topics have newer events, before anything is sent."""

import pytest

from headrace.ingest.errors import BackfillRefused
from headrace.ingest.logs.ndjson import event_time_ms
from headrace.ingest.replay.backfill import refuse_older

HOUR_MS = 3_600_000
WEEK_OF_2023 = 1_684_000_000_000
IN_2026 = 1_795_000_000_000


def test_a_log_of_2023_is_refused_after_events_of_2026() -> None:
    with pytest.raises(BackfillRefused, match=r"clicks.*2026.*begins at 2023.*--onto-newer"):
        refuse_older(WEEK_OF_2023, {"clicks": IN_2026}, HOUR_MS)


def test_a_log_may_follow_empty_topics_older_events_and_those_of_its_label_window() -> None:
    refuse_older(WEEK_OF_2023, {}, HOUR_MS)
    refuse_older(IN_2026, {"impressions": WEEK_OF_2023}, HOUR_MS)
    refuse_older(IN_2026, {"impressions": IN_2026 + HOUR_MS}, HOUR_MS)


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (b'{"timestamp_ms": 7}', 7),
        (b'{"timestamp_ms": 7.9, "more": 1}', 7),
        (b'{"timestamp_ms": 1e400}', None),
        (b'{"timestamp_ms": "7"}', None),
        (b"\xff", None),
        (b"", None),
    ],
)
def test_an_event_without_a_readable_time_decides_nothing(
    event: bytes, expected: int | None
) -> None:
    assert event_time_ms(event) == expected
