"""Limits and counts of a collector's clients, by their token."""

import asyncio

import pytest

from headrace.ingest.collector.collector_process import CollectorSettings, limits_of
from headrace.ingest.events.json_schema import EventKind
from headrace.runtime.http.http_errors import BadTokens
from headrace.runtime.http.token_grants import TokenGrant
from tests.ingest.collector.collecting import collecting

TOKEN, OTHER = "sixteen-characters-1", "sixteen-characters-2"
CLICKS = "/v1/clicks"
CLICK = b'{"impression_id": "one", "timestamp_ms": 1700000000000}'


def test_a_client_of_a_collector_gets_its_rate_and_is_counted_alone() -> None:
    grants = [TokenGrant(TOKEN, "shop", 0.001), TokenGrant(OTHER)]

    async def send() -> None:
        async with collecting(tokens=[TOKEN, OTHER], grants=grants) as collector:

            async def status(token: str) -> tuple[int, str | None]:
                headers = {
                    "content-type": "application/json",
                    "authorization": f"Bearer {token}",
                }
                answer = await collector.http.post(CLICKS, content=CLICK, headers=headers)
                return answer.status_code, answer.headers.get("retry-after")

            assert await status(TOKEN) == (200, None)
            assert await status(TOKEN) == (429, "1000")
            assert await status(OTHER) == (200, None)
            value = collector.registry.get_sample_value
            kind = EventKind.CLICK
            for code in ("200", "429"):
                labels = {"client": "shop", "event": kind, "code": code}
                assert value("headrace_collector_client_requests_total", labels) == 1.0
            events = {"client": "shop", "event": kind}
            assert value("headrace_collector_client_events_total", events) == 1.0
            assert value("headrace_collector_events_total", {"event": kind}) == 2.0

    asyncio.run(send())


def test_a_collector_refuses_tokens_that_name_models() -> None:
    grants = [TokenGrant(TOKEN, "shop", 0.0, ("news",))]
    with pytest.raises(BadTokens, match="events belong to no model"):
        limits_of(CollectorSettings(tokens=[TOKEN], grants=grants))
