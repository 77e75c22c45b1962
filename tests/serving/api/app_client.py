"""Sends requests to a server's application in memory: by ASGI, or over a connection."""

import asyncio
import functools
from typing import Any

import httpx
import uvicorn

from headrace.runtime.http.server import SingleWriteProtocol
from headrace.serving.requests.limits import RequestLimits
from tests.memory_connection import MemoryConnection
from tests.serving.served_models import Pusher, Serving, memory_store, news

PREDICT, RANK = "/v1/models/news:predict", "/v1/models/news:rank"


def ask(serving: Serving, method: str, path: str, **how: Any) -> httpx.Response:
    async def send() -> httpx.Response:
        transport = httpx.ASGITransport(app=serving.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.request(method, path, **how)

    return asyncio.run(send())


def complete(**how: Any) -> tuple[Serving, Pusher]:
    store = memory_store(news())
    serving = Serving(store, **how)
    serving.follow()
    return serving, Pusher(store)


TOKEN = "a-token-of-this-test"


def posted(path: str, body: bytes, *lines: str, version: str = "1.1") -> bytes:
    head = [f"POST {path} HTTP/{version}", "Host: server", f"Authorization: Bearer {TOKEN}", *lines]
    return "\r\n".join([*head, f"Content-Length: {len(body)}", "", ""]).encode() + body


@functools.cache
def configured(kind: type[SingleWriteProtocol], serving: Serving) -> uvicorn.Config:
    made = uvicorn.Config(serving.app, http=kind, proxy_headers=False, ws="none", log_config=None)
    made.load()
    return made


class Connection(MemoryConnection):
    """A client's connection to a server of `serving`."""

    def __init__(self, kind: type[SingleWriteProtocol], serving: Serving) -> None:
        super().__init__(kind, configured(kind, serving))  # type: ignore[arg-type]

    async def answered(self) -> bytes:
        """Return all responses once the last request is answered."""
        protocol = self.protocol
        return await self.received_once(
            lambda: protocol.cycle.response_complete and not protocol.pipeline
        )


def serving(**limits: Any) -> Serving:
    made, _ = complete(limits=RequestLimits(body_bytes=4_000, **limits), tokens=[TOKEN])
    return made
