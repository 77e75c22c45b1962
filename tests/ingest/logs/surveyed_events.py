"""Events of a log to survey, and the survey of them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headrace.ingest.features.fields import parse_fields
from headrace.ingest.features.spec_text import SpecText
from headrace.ingest.survey.findings import LogSurvey
from headrace.ingest.survey.log_survey import survey_log

T0_MS = 1_700_000_000_000
NOW_MS = T0_MS + 86_400_000 * 30
COUNT = 200
WINDOW_MS = 60_000
SPEC = SpecText(
    "s.toml",
    """
    [fields]
    user = { number = 1, transform = "id" }
    category = { number = 2, transform = "id" }
    position = { number = 3, transform = "log_bucket" }
    price = { number = 4, transform = "number" }
    topics = { number = 5, transform = "bag" }
    [label]
    window_s = 60
    """,
)
FIELDS = parse_fields(SPEC.tables(), SPEC)

Event = dict[str, Any]


def impression(i: int) -> Event:
    return {
        "impression_id": f"i{i}",
        "timestamp_ms": T0_MS + 1000 * i,
        "user": f"u{i % 7}",
        "category": "news",
        "position": i % 5,
        "price": 2.5,
        "topics": ["a", "b"],
    }


def click(i: int, after_ms: int = 500) -> Event:
    return {"impression_id": f"i{i}", "timestamp_ms": T0_MS + 1000 * i + after_ms}


def surveyed(
    folder: Path,
    change: Callable[[Event], Event] = lambda event: event,
    clicks: list[Event] | None = None,
    order: list[int] | None = None,
    *,
    sort: bool = False,
) -> LogSurvey:
    shown = [json.dumps(change(impression(i))) for i in order or range(COUNT)]
    clicked = [json.dumps(each) for each in ([click(3)] if clicks is None else clicks)]
    (folder / "impressions.ndjson").write_text("".join(line + "\n" for line in shown))
    (folder / "clicks.ndjson").write_text("".join(line + "\n" for line in clicked))
    return survey_log(folder, FIELDS, now_ms=NOW_MS, sort=sort)


def without(event: Event, name: str) -> Event:
    return {key: value for key, value in event.items() if key != name}
