"""How fast a server answers while its model is learned.

    python -m tests.bench.serving [--quick] [--json]

One process serves the model of the sample news (logistic regression, ids, crosses and row
statistics) from a replica of a quarter of a million rows, one worker, while pushes that carry 2,000
examples a second arrive in its store (in memory: no socket). Another process asks. On two cores
that is one for each; what else the machine does is in the figures.

`p50_ms`, `p99_ms`: requests of 200 candidates sent at a fixed rate, timed from the moment they were
due, so that a stall counts for every request that had to wait. `candidates_per_second`: the same
requests, as fast as eight connections get answers. `requests_per_second`: likewise, one candidate.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import multiprocessing
import os
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import orjson
import uvloop

from ingest.clock import wall_ms
from ingest.encode import Encoder
from learner.spec import load_spec
from pserver.gains import Gains, Header, Reached, pack
from pserver.memory_store import MemoryStore
from pserver.store import Push, Shape, Span
from serving.api.openapi import examples
from serving.process import ModelAt, ServerSettings, run_server

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence
    from multiprocessing.connection import Connection

    from ingest.fields import FieldSet
    from learner.spec import ModelSpec

SPEC = Path(__file__).parents[2] / "deploy" / "models" / "news.toml"
BUCKETS = 16
ROWS = 250_000
PUSHES_PER_S = 20
EXAMPLES_A_PUSH = 100
CANDIDATES = 200
CONNECTIONS = 8
RATE_PER_S = 100
"""Of the requests that are timed: 20,000 candidates a second, an eighth of what is aimed at."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One model's figures."""

    p50_ms: float
    p99_ms: float
    requests_per_second: float
    candidates_per_second: float


# What is learned meanwhile


def events(fields: FieldSet, count: int, dice: np.random.Generator) -> list[dict[str, int]]:
    """Return events whose values follow Zipf's law, as those of users and articles do."""
    sources = {each.source for each in (*fields.singles, *fields.bags, *fields.numbers)} - {""}
    columns = {source: dice.zipf(1.2, count) % 1_000_000 for source in sorted(sources)}
    return [
        {"timestamp_ms": wall_ms()} | {source: int(column[i]) for source, column in columns.items()}
        for i in range(count)
    ]


def gains_of(ids: np.ndarray, dice: np.random.Generator) -> Gains:
    """Return what rows gain from an example each or so."""
    unique = np.unique(ids)
    count, second = unique.shape[0], np.uint32(time.time())
    seconds = np.full(count, second, np.uint32)
    values = dice.normal(0.0, 0.3, (count, 2)).astype(np.float32) ** np.array([1, 2], np.float32)
    shows, clicks = np.ones(count, np.uint32), np.zeros(count, np.uint32)
    return Gains(unique, shows, clicks, seconds, seconds, values)


class Pushing:
    """A learner's pushes: rounds of one entry a bucket."""

    def __init__(self, spec: ModelSpec, store: MemoryStore) -> None:
        self._store, self._shape = store, store.shape()
        self._encoder, self._fields = Encoder(spec.fields), spec.fields
        self._dice = np.random.default_rng(11)
        self._nonces = itertools.count(1)
        self._offset = 0

    def fill(self) -> None:
        """Push the rows that the model starts with."""
        random_ids = self._dice.integers(0, 2**63, ROWS).astype(np.uint64) << np.uint64(1)
        self._push(gains_of(random_ids, self._dice))

    def rounds(self, count: int) -> Iterator[Gains]:
        """Yield what each of so many rounds carries."""
        for _ in range(count):
            made = self._encoder.encode(events(self._fields, EXAMPLES_A_PUSH, self._dice))
            yield gains_of(np.concatenate([made.ids.reshape(-1), made.bag_ids]), self._dice)

    def keep_pushing(self, stop: threading.Event) -> None:
        """Push 2,000 examples a second until told to stop."""
        made = itertools.cycle(list(self.rounds(200)))  # made before: this process is a server
        due = time.monotonic()
        while not stop.wait(max(0.0, due - time.monotonic())):
            self._push(next(made))
            due += 1 / PUSHES_PER_S

    def _push(self, gains: Gains) -> None:
        start, self._offset = self._offset, self._offset + 1
        of_row, append_ms = self._shape.bucket_of(gains.ids), wall_ms()
        span = Span("bench/0", start, self._offset)
        reached = [Reached("bench/0", start, self._offset, append_ms)]
        pushes = []
        for bucket in range(BUCKETS):
            part = Gains(*(column[of_row == bucket] for column in gains))
            header = Header(2, len(part.ids), append_ms, append_ms, reached)
            nonce = next(self._nonces).to_bytes(8, "little")
            pushes.append(Push(bucket, (span,), nonce, pack(header, part)))
        self._store.push(pushes)


def serve(parent: Connection) -> None:
    """Serve until the parent says so; tell it the port first."""
    spec = load_spec(SPEC)
    nonces = itertools.count(1)
    store = MemoryStore(clock_ms=wall_ms, nonces=lambda: next(nonces).to_bytes(8, "little"))
    store.create(Shape(spec.name, BUCKETS, spec.width, spec.fingerprint, spec.text))
    pushing = Pushing(spec, store)
    pushing.fill()
    stop = threading.Event()

    def obey() -> None:
        with contextlib.suppress(EOFError):  # or the parent is gone
            parent.recv()
        stop.set()

    pusher = threading.Thread(target=pushing.keep_pushing, args=(stop,))
    threading.Thread(target=obey, daemon=True).start()
    pusher.start()
    run_server(ServerSettings(port=0), [ModelAt(spec, store)], stop, parent.send)
    pusher.join()


# What is asked


def requests(spec: ModelSpec, candidates: int) -> list[bytes]:
    """Return HTTP requests for so many candidates, different from each other."""
    dice = np.random.default_rng(12)
    example = examples(spec.fields)["candidates"]["value"]
    [own, *_] = example["candidates"]
    name = next(iter(own))
    made = []
    for _ in range(64):
        rows = [{name: int(value)} for value in dice.zipf(1.2, candidates) % 1_000_000]
        context = dict(example["context"])
        context |= {key: int(dice.zipf(1.2)) for key in context if isinstance(context[key], str)}
        body = orjson.dumps({"context": context, "candidates": rows})
        head = (
            f"POST /v1/models/{spec.name}:predict HTTP/1.1\r\nHost: bench\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        made.append(head.encode() + body)
    return made


class Connected:
    """A kept-alive connection that sends ready-made requests."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self.writer = reader, writer

    async def ask(self, request: bytes) -> bytes:
        """Return the body of the answer. Raises RuntimeError if it is not a 200."""
        self.writer.write(request)
        head = await self._reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length:", 1)[1].split(b"\r\n", 1)[0])
        body = await self._reader.readexactly(length)
        if not head.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"expected 200, found {head!r} {body!r}")
        return body


async def connected(
    port: int, count: int, use: Callable[[list[Connected]], Awaitable[float | list[float]]]
) -> float | list[float]:
    """Open connections, use them, close them."""
    made = [
        Connected(*await asyncio.open_connection("127.0.0.1", port, limit=1 << 24))
        for _ in range(count)
    ]
    try:
        return await use(made)
    finally:
        for each in made:
            each.writer.close()
            await each.writer.wait_closed()


async def answers_per_second(
    connections: Sequence[Connected], asked: Sequence[bytes], seconds: float
) -> float:
    """Ask on every connection as soon as it has its answer."""
    until, count = time.perf_counter() + seconds, 0

    async def ask_on(connection: Connected, first: int) -> None:
        nonlocal count
        for request in itertools.islice(itertools.cycle(asked), first, None):
            await connection.ask(request)
            if time.perf_counter() >= until:
                return
            count += 1

    await asyncio.gather(*(ask_on(each, i) for i, each in enumerate(connections)))
    return count / seconds


async def waits_ms(
    connections: Sequence[Connected], asked: Sequence[bytes], seconds: float
) -> list[float]:
    """Ask at a fixed rate; return how long after it was due each answer came."""
    free: asyncio.Queue[Connected] = asyncio.Queue()
    for each in connections:
        free.put_nowait(each)
    waits: list[float] = []

    async def ask_at(due: float, request: bytes) -> None:
        connection = await free.get()
        await connection.ask(request)
        waits.append(1000 * (time.perf_counter() - due))
        free.put_nowait(connection)

    began, asking = time.perf_counter(), []
    for i in range(int(seconds * RATE_PER_S)):
        due = began + i / RATE_PER_S
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        asking.append(asyncio.create_task(ask_at(due, asked[i % len(asked)])))
    await asyncio.gather(*asking)
    return waits


async def ready(port: int) -> None:
    """Wait until the replica is complete and the kernels are compiled."""
    [request, *_] = requests(load_spec(SPEC), 2)
    deadline = time.monotonic() + 60

    async def until_answered(connections: list[Connected]) -> float:
        while True:
            try:
                await connections[0].ask(request)
            except RuntimeError:
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(0.05)
            else:
                return 0.0

    await connected(port, 1, until_answered)


async def measure(port: int, seconds: float) -> Measured:
    """Ask the server at `port`; each of three measurements takes so many seconds."""
    spec = load_spec(SPEC)
    one, many = requests(spec, 1), requests(spec, CANDIDATES)
    await ready(port)

    async def warm(connections: list[Connected]) -> float:
        return await answers_per_second(connections, many, 1.0)

    async def rate_of_one(connections: list[Connected]) -> float:
        return await answers_per_second(connections, one, seconds)

    async def rate_of_many(connections: list[Connected]) -> float:
        return await answers_per_second(connections, many, seconds)

    async def timed(connections: list[Connected]) -> list[float]:
        return await waits_ms(connections, many, seconds)

    await connected(port, CONNECTIONS, warm)
    p50, p99 = np.percentile(await connected(port, CONNECTIONS, timed), (50, 99))
    return Measured(
        round(float(p50), 2),
        round(float(p99), 2),
        round(float(np.asarray(await connected(port, CONNECTIONS, rate_of_one)))),
        round(CANDIDATES * float(np.asarray(await connected(port, CONNECTIONS, rate_of_many)))),
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true", help="seconds instead of a minute")
    parser.add_argument("--json", action="store_true", help="one JSON object, nothing else")
    options = parser.parse_args()
    spawning = multiprocessing.get_context("spawn")
    here, there = spawning.Pipe()
    server = spawning.Process(target=serve, args=(there,), daemon=True)
    server.start()
    there.close()
    try:
        port = here.recv()
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            figures = {"lr": asdict(runner.run(measure(port, 5.0 if options.quick else 20.0)))}
    finally:
        here.close()
        server.join(20)
    if options.json:
        print(json.dumps(figures))
        return
    for model, measured in figures.items():
        for name, figure in measured.items():
            print(f"{model:6} {name:24} {figure:>12,}")
    print(f"load average of the last minute: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
