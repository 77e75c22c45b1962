"""What is written in one turn of the loop is sent in one piece, and nothing is lost at the end."""

from __future__ import annotations

import asyncio
from typing import Any

from ingest.collector.http_server import Gathering


class Transport(asyncio.Transport):
    """Remembers what it was told."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[Any] = []

    def write(self, data: Any) -> None:
        self.told.append(data)

    def close(self) -> None:
        self.told.append("closed")

    def is_closing(self) -> bool:
        return "closed" in self.told


def test_the_head_and_the_body_of_an_answer_are_one_write() -> None:
    async def answer() -> list[Any]:
        transport = Transport()
        gathered = Gathering(transport, asyncio.get_running_loop())
        gathered.write(b"head ")
        gathered.write(b"body")
        assert transport.told == []
        await asyncio.sleep(0)
        gathered.write(b"another")
        await asyncio.sleep(0)
        return transport.told

    assert asyncio.run(answer()) == [b"head body", b"another"]


def test_what_was_written_is_sent_before_the_connection_is_closed() -> None:
    async def answer() -> Transport:
        transport = Transport()
        gathered = Gathering(transport, asyncio.get_running_loop())
        gathered.write(b"last")
        gathered.close()
        await asyncio.sleep(0)
        return transport

    transport = asyncio.run(answer())
    assert transport.told == [b"last", "closed"]
    assert transport.is_closing()
