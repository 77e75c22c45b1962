"""Has the server rank each request of a log before the events of the request are sent.

A replay passes the lines that are due to this client before it sends them (argument `before` of
`headrace.ingest.replay`). The client sends the impressions of each request to the server, as
the site would have done, and waits for the answers. No score can therefore depend on the click or
the show that it predicts. Joined with the outcomes, the scores give the accuracy for users.

The requests of a group are sent at the same time over a few connections. A replay in real time must
go on: a group that is late is skipped, and no wait is longer than `patience_s`. Both are counted,
so that an accuracy comes with the share of the log that it covers.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import aiohttp
import orjson

from headrace.deploy.reports.event_log import requests_of
from headrace.ingest.features.fields import FieldSet
from headrace.ingest.logs.ndjson import Line

Told = Callable[[list[str], list[float]], None]

PATIENCE_S = 1.0
"""Deadline for all answers of a group; a user would have left by then."""
_CONNECTIONS = 8
"""Requests at a time: enough to keep a server busy that computes one after another."""
_LATE_S = 0.5
"""A replay that is later than this skips requests until it has caught up."""
_AGAIN_S = 0.02
"""Pause before a retry at an overloaded server."""
_START_S = 10.0
_ANSWERED, _OVERLOADED = 200, 503


@dataclass(slots=True)
class RequestStats:
    """Counts of the requests that were due."""

    requests: int = 0
    answered: int = 0
    late: int = 0
    """Skipped, because the replay was late."""
    unanswered: int = 0
    """No answer by the deadline."""
    refused: int = 0
    """Refused by the server."""
    by_model: dict[str, int] = field(default_factory=dict)
    """Answered requests of each model of the alias."""


class RankingClient:
    """Sends requests from an event loop in a thread. A context manager."""

    def __init__(
        self,
        url: str,
        fields: FieldSet,
        told: Told = lambda *_: None,
        *,
        token: str = "",
        patience_s: float = PATIENCE_S,
    ) -> None:
        """`url` is the ranking route. `told` is called with the ids and scores of each answer.

        token: sent with each request, if the server asks for one.
        """
        self._url, self._fields, self._told = url, fields, told
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._patience_s = patience_s
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="asking", daemon=True)
        self._session: aiohttp.ClientSession | None = None
        self.stats = RequestStats()

    def __enter__(self) -> Self:
        self._thread.start()
        self._run(self._open())
        return self

    def __exit__(self, *_: object) -> None:
        try:
            if self._session is not None:
                self._run(self._session.close())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def ask(self, lines: Sequence[Line], late_s: float) -> None:
        """Have the requests among these lines ranked; return at the last answer or deadline."""
        requests = requests_of(lines, self._fields)
        self.stats.requests += len(requests)
        if late_s > _LATE_S:
            self.stats.late += len(requests)
        elif requests:
            self._run(self._ask_all(requests))

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(_START_S + self._patience_s)

    async def _open(self) -> None:
        self._session = aiohttp.ClientSession(
            headers=self._headers,
            connector=aiohttp.TCPConnector(limit=_CONNECTIONS),
            timeout=aiohttp.ClientTimeout(total=None),
        )

    async def _ask_all(self, requests: list[bytes]) -> None:
        until_s = time.monotonic() + self._patience_s
        async with asyncio.TaskGroup() as group:
            for each in requests:
                group.create_task(self._ask(each, until_s))

    async def _ask(self, request: bytes, until_s: float) -> None:
        try:
            async with asyncio.timeout(until_s - time.monotonic()):
                status, body = await self._answer(request)
        except (TimeoutError, aiohttp.ClientError):
            self.stats.unanswered += 1
            return
        if status != _ANSWERED:
            self.stats.refused += 1
            return
        self.stats.answered += 1
        answer = orjson.loads(body)
        ranking, model = answer["ranking"], str(answer.get("model", ""))
        self.stats.by_model[model] = self.stats.by_model.get(model, 0) + 1
        self._told([each["impression_id"] for each in ranking], [each["score"] for each in ranking])

    async def _answer(self, request: bytes) -> tuple[int, bytes]:
        """Return status and body of the answer. Retries while the server is overloaded."""
        assert self._session is not None
        while True:
            async with self._session.post(self._url, data=request) as answer:
                body = await answer.read()
            if answer.status != _OVERLOADED:
                return answer.status, body
            await asyncio.sleep(_AGAIN_S)
