"""Sends requests to a server's application in memory."""

import asyncio
from typing import Any

import httpx

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
