"""Has the server rank each request of a log before the events of the request are sent.

A replay passes the lines that are due to this client before it sends them (argument `before` of
`headrace.ingest.replay`). The client sends the impressions of each request to the server, as
the site would have done, and waits for the answers. No score can therefore depend on the click or
the show that it predicts. Joined with the outcomes, the scores give the accuracy for users.

The requests of a group are sent at the same time over a few connections. A replay in real time must
go on: a group that is late is skipped, and no wait is longer than `patience_s`. Both are counted,
so that an accuracy comes with the share of the log that it covers.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import aiohttp
import numpy as np
import orjson
import pyarrow as pa

from headrace.learner.loop.scores import Scores

if TYPE_CHECKING:
    from headrace.ingest.features.fields import FieldSet
    from headrace.ingest.logs.ndjson import Line


Told = Callable[[list[str], list[float]], None]

_START_S = 10.0
_ANSWERED, _OVERLOADED = 200, 503


@dataclass(frozen=True, slots=True)
class RankingSettings:
    """Concurrency and time limits of the requests."""

    connections: int = 8
    """Requests at a time: enough to keep a server busy that computes one after another."""
    patience_s: float = 1.0
    """Deadline for all answers of a group; a user would have left by then."""
    late_s: float = 0.5
    """A replay that is later than this skips requests until it has caught up."""
    again_s: float = 0.02
    """Pause before a retry at an overloaded server."""
    kept: bool = True
    """Keep scores and latencies. Without an end, they would fill the memory."""
    token: str = ""
    """Sent with each request, if the server asks for one."""


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
    took_s: list[float] = field(default_factory=list)
    """Latency of each answered request, retries included."""


@dataclass(frozen=True, slots=True)
class RankingRequest:
    """The impressions of one request, as the body for the server."""

    body: bytes
    candidates: int


def requests_of(lines: Iterable[Line], fields: FieldSet) -> list[RankingRequest]:
    """Group the impressions among these lines into requests. Malformed lines are skipped.

    Values that all candidates share are in the context. Fields that the model does not read are
    left out.
    """
    sources = [each.source for each in (*fields.singles, *fields.bags, *fields.numbers)]
    names = [name for name in dict.fromkeys(sources) if name and name != "timestamp_ms"]
    shown: dict[str, list[dict[str, Any]]] = {}
    for line in lines:
        if line.is_click or line.key is None:
            continue
        event: dict[str, Any] = orjson.loads(
            line.value
        )  # the replay has checked that it is an object
        shown.setdefault(str(event.get("request_id") or line.key.decode()), []).append(event)
    return [_request(identity, events, names) for identity, events in shown.items()]


def _request(identity: str, events: list[dict[str, Any]], names: Sequence[str]) -> RankingRequest:
    first, *others = events
    context = {
        name: first[name]
        for name in names
        if name in first and all(name in each and each[name] == first[name] for each in others)
    }
    candidates = [
        {"impression_id": each["impression_id"]}
        | {name: each[name] for name in names if name in each and name not in context}
        for each in events
    ]
    request = {
        "request_id": identity,
        "timestamp_ms": int(first["timestamp_ms"]),
        "context": context,
        "candidates": candidates,
    }
    return RankingRequest(orjson.dumps(request), len(candidates))


class RankingClient:
    """Sends requests from an event loop in a thread. A context manager."""

    def __init__(
        self,
        url: str,
        fields: FieldSet,
        told: Told = lambda *_: None,
        settings: RankingSettings | None = None,
    ) -> None:
        """`url` is the ranking route. `told` is called with the ids and scores of each answer."""
        self._url, self._fields, self._told = url, fields, told
        self._settings = settings or RankingSettings()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="asking", daemon=True)
        self._session: aiohttp.ClientSession | None = None
        self._ids: list[str] = []
        self._scores: list[float] = []
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
        if late_s > self._settings.late_s:
            self.stats.late += len(requests)
        elif requests:
            self._run(self._ask_all(requests))

    def served(self) -> Scores:
        """Return every served score in the format of the learner's scores."""
        ids = pa.array(self._ids, pa.string())
        nothing = pa.nulls(len(ids), pa.string())
        times = np.zeros(len(ids), np.int64)
        return Scores(ids, nothing, times, np.array(self._scores, np.float64))

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(
            _START_S + self._settings.patience_s
        )

    async def _open(self) -> None:
        settings = self._settings
        sent = {"Authorization": f"Bearer {settings.token}"} if settings.token else {}
        self._session = aiohttp.ClientSession(
            headers=sent,
            connector=aiohttp.TCPConnector(limit=settings.connections),
            timeout=aiohttp.ClientTimeout(total=None),
        )

    async def _ask_all(self, requests: list[RankingRequest]) -> None:
        until_s = time.monotonic() + self._settings.patience_s
        async with asyncio.TaskGroup() as group:
            for each in requests:
                group.create_task(self._ask(each, until_s))

    async def _ask(self, request: RankingRequest, until_s: float) -> None:
        began_s = time.monotonic()
        try:
            async with asyncio.timeout(until_s - began_s):
                status, body = await self._answer(request)
        except (TimeoutError, aiohttp.ClientError):
            self.stats.unanswered += 1
            return
        if status != _ANSWERED:
            self.stats.refused += 1
            return
        self._take(body)
        self.stats.answered += 1
        if self._settings.kept:
            self.stats.took_s.append(time.monotonic() - began_s)

    async def _answer(self, request: RankingRequest) -> tuple[int, bytes]:
        """Return status and body of the answer. Retries while the server is overloaded."""
        assert self._session is not None
        while True:
            async with self._session.post(self._url, data=request.body) as answer:
                body = await answer.read()
            if answer.status != _OVERLOADED:
                return answer.status, body
            await asyncio.sleep(self._settings.again_s)

    def _take(self, body: bytes) -> None:
        answer = orjson.loads(body)
        ranking, model = answer["ranking"], str(answer.get("model", ""))
        self.stats.by_model[model] = self.stats.by_model.get(model, 0) + 1
        ids = [each["impression_id"] for each in ranking]
        scores = [each["score"] for each in ranking]
        if self._settings.kept:
            self._ids += ids
            self._scores += scores
        self._told(ids, scores)
