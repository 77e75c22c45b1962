"""Events, routes and headers of requests to the collector."""

import json
from typing import Any

from tests.ingest.collector.collecting import NOW_MS

IMPRESSIONS, CLICKS = "/v1/impressions", "/v1/clicks"
JSON = {"content-type": "application/json"}


def event(name: str = "a", **fields: Any) -> dict[str, Any]:
    return {"impression_id": name, "timestamp_ms": NOW_MS, **fields}


def line(name: str = "a", **fields: Any) -> bytes:
    return json.dumps(event(name, **fields)).encode()
