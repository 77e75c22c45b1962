"""Sends requests that were made beforehand on kept-alive connections, without a client library.

There are two ways. At a fixed rate, each answer is timed from the due time of its request: a stall
counts for every request that had to wait, as for users, who do not wait for each other. Or each
connection sends its next request after an answer, which measures the capacity.

A client library would take longer for a request than the server takes for its answer, on the same
two cores. Requests are therefore bytes, and only status and length of an answer are read.
"""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import numpy as np
import orjson

from headrace.learner.spec.model_spec import ModelSpec
from headrace.serving.api.openapi import examples

CONNECTIONS = 8
_DIFFERENT = 64
_WITHIN_S = 60.0
_AGAIN_S = 0.05


def requests(spec: ModelSpec, candidates: int) -> list[bytes]:
    """Return HTTP requests for so many candidates, different from each other."""
    dice = np.random.default_rng(12)
    example = examples(spec.fields)["candidates"]["value"]
    [own, *_] = example["candidates"]
    name = next(iter(own))
    made = []
    for _ in range(_DIFFERENT):
        rows = [{name: int(value)} for value in dice.zipf(1.2, candidates) % 1_000_000]
        context = dict(example["context"])
        context |= {key: int(dice.zipf(1.2)) for key in context if isinstance(context[key], str)}
        body = orjson.dumps({"context": context, "candidates": rows})
        head = (
            f"POST /v1/models/{spec.name}:predict HTTP/1.1\r\nHost: localhost\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        made.append(head.encode() + body)
    return made


class Connected:
    """A kept-alive connection that sends ready-made requests."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self.writer = reader, writer

    async def ask(self, request: bytes) -> bool:
        """Return whether it was answered; False: refused, for too much is ahead (503).

        Raises RuntimeError if it is any other answer.
        """
        self.writer.write(request)
        head = await self._reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length:", 1)[1].split(b"\r\n", 1)[0])
        body = await self._reader.readexactly(length)
        answered = head.startswith(b"HTTP/1.1 200")
        if not answered and not head.startswith(b"HTTP/1.1 503"):
            raise RuntimeError(f"expected 200 or 503, found {head!r} {body!r}")
        return answered


@asynccontextmanager
async def connected(port: int, count: int = CONNECTIONS) -> AsyncIterator[list[Connected]]:
    """Open connections; close them when the block ends."""
    made = [
        Connected(*await asyncio.open_connection("127.0.0.1", port, limit=1 << 24))
        for _ in range(count)
    ]
    try:
        yield made
    finally:
        for each in made:
            each.writer.close()
        await asyncio.gather(*(each.writer.wait_closed() for each in made), return_exceptions=True)


async def ready(port: int, request: bytes) -> None:
    """Wait until the server listens, its copy is complete and its kernels are compiled."""
    deadline = time.monotonic() + _WITHIN_S
    while True:
        try:
            async with connected(port, 1) as [connection]:
                if await connection.ask(request):
                    return
        except (OSError, asyncio.IncompleteReadError):
            if time.monotonic() > deadline:
                raise
        if time.monotonic() > deadline:
            raise RuntimeError(f"expected an answer within {_WITHIN_S:.0f} s, found 503")
        await asyncio.sleep(0.05)


async def answers_per_second(port: int, asked: Sequence[bytes], seconds: float) -> float:
    """Ask on every connection as soon as it has its answer; who is refused asks again later."""
    until, count = time.perf_counter() + seconds, 0

    async def ask_on(connection: Connected, first: int) -> None:
        nonlocal count
        for request in itertools.islice(itertools.cycle(asked), first, None):
            answered = await connection.ask(request)
            if time.perf_counter() >= until:
                return
            count += answered
            if not answered:
                await asyncio.sleep(_AGAIN_S)  # as the refusal asks: refusals cost work, too

    async with connected(port) as connections:
        await asyncio.gather(*(ask_on(each, i) for i, each in enumerate(connections)))
    return count / seconds


async def waits_ms(
    port: int, asked: Sequence[bytes], rate_per_s: float, seconds: float
) -> tuple[list[float], int]:
    """Ask at a fixed rate; return how long after it was due each answer came, and how many
    of them were refusals.
    """
    free: asyncio.Queue[Connected] = asyncio.Queue()
    waits: list[float] = []
    refused = 0

    async def ask_at(due: float, request: bytes) -> None:
        nonlocal refused
        connection = await free.get()
        refused += not await connection.ask(request)
        waits.append(1000 * (time.perf_counter() - due))
        free.put_nowait(connection)

    async with connected(port) as connections:
        for each in connections:
            free.put_nowait(each)
        began, asking = time.perf_counter(), []
        for i in range(int(seconds * rate_per_s)):
            due = began + i / rate_per_s
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            asking.append(asyncio.create_task(ask_at(due, asked[i % len(asked)])))
        await asyncio.gather(*asking)
    return waits, refused
