"""Connections to the server's protocols, in memory."""

import functools
from typing import Any

import uvicorn

from headrace.runtime.http.server import SingleWriteProtocol
from headrace.serving.requests.limits import RequestLimits
from tests.memory_connection import MemoryConnection
from tests.serving.api.app_client import complete
from tests.serving.served_models import Serving

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
