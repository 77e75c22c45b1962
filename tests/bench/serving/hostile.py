"""Measures how hostile connections affect a server and its other clients.

    python -m tests.bench.serving.hostile [--quick] [--json] [--only ATTACK]

There are three processes: a prediction server over rows in memory, an attacker with 1,000
connections and no token, and a client with a token that sends one request after the other. Each
attack lasts a minute (three seconds with --quick). `memory`: the server's largest resident memory
during the attack, relative to that before. `p50`, `p99`: the client's waits during the attack,
relative to those of an equal time without one. `answered`: the client's requests that were answered
with 200; `failed`: all others.

An attacker on the same machine takes processor time from the server, which one elsewhere would not.
On Linux, the attacker therefore has a core of its own, and the server and the client share another.
The rest of this effect shows on a decoy, a process that takes connections, discards their bytes and
closes them where the server would. It is attacked before, on the attacker's core.
`p99_beside`: the client's waits meanwhile, like `p99`. `calm_p99_ms`: the p99
without an attack.
`attacker_cores`, `server_cores`: processor time of the two during the attack, by its duration.
"""

import asyncio
import contextlib
import http.client
import json
import multiprocessing
import os
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import psutil
import uvloop
from rich.console import Console
from rich.table import Table

from headrace.runtime.http.bounded_protocol import ConnectionLimits
from headrace.runtime.http.server import Draining, Readiness, run_app
from headrace.runtime.process import rare_collections
from headrace.serving.api.fast_path_probe import choose_protocol
from headrace.serving.process import OBJECTS_BETWEEN_COLLECTIONS
from tests.bench.bench_options import bench_parser

CONNECTIONS = 1_000
CORES = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
"""Those that this process may use; the system does not say it everywhere."""
TOKEN = "a-token-of-the-client"
PATH = "/v1/models/news:predict"
BODY = json.dumps({"candidates": [{"article_id": i} for i in range(50)]}).encode()
HEAD = f"POST {PATH} HTTP/1.1\r\nHost: server\r\n".encode()

ATTACKS: dict[str, tuple[bytes, bytes, float]] = {
    # what a connection begins with, what it repeats, and the pause between
    "many headers": (HEAD, b"a: b\r\n" * 500, 0.0),
    "one header": (HEAD + b"A: ", b"x" * 16_384, 0.0),
    "half a head": (HEAD + b"A: ", b"x", 1.0),
    "silence": (b"", b"", 1.0),
    "pipelined": (b"", (HEAD + b"Content-Length: 0\r\n\r\n") * 100, 0.0),
    "stalled bodies": (HEAD + b"Content-Length: 4000000\r\n\r\n", b"x", 1.0),
    "trailers": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\n", b"a: b\r\n" * 500, 0.0),
    "upgrades": (
        b"",
        (HEAD + b"Connection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 4\r\n\r\nabcd") * 50,
        0.0,
    ),
}


def serve(ready: Connection) -> None:
    """Serve the sample news until the process is terminated; send the port first."""
    from tests.serving.api.app_client import complete

    _stay_on(0)
    _files()
    serving, _ = complete(tokens=[TOKEN])
    listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
    ready.send(listener.getsockname()[1])
    leaving = Draining(threading.Event(), Readiness(), lambda: False, drain_ms=0, finish_s=1)
    with rare_collections(OBJECTS_BETWEEN_COLLECTIONS):  # as in the process
        run_app(serving.app, listener, leaving, protocol=choose_protocol())


async def _discard(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Read as much as the server would of a head, and close."""
    left = ConnectionLimits().head_bytes
    with contextlib.suppress(OSError):
        while left > 0 and (data := await reader.read(left)):
            left -= len(data)
    writer.transport.abort()


def decoy(ready: Connection) -> None:
    """Take connections and discard their bytes until the process is terminated."""
    _stay_on(1)
    _files()

    async def listen() -> None:
        server = await asyncio.start_server(_discard, "127.0.0.1", 0, backlog=2048)
        ready.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    uvloop.run(listen())


def attack(port: int, name: str, seconds: float) -> None:
    """Keep 1,000 connections busy, each opened again when it is closed."""
    _stay_on(1)
    _files()
    begin, more, pause_s = ATTACKS[name]
    until_s = time.monotonic() + seconds

    async def one() -> None:
        while time.monotonic() < until_s:
            with contextlib.suppress(OSError, TimeoutError):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                try:
                    writer.write(begin)
                    while time.monotonic() < until_s:
                        writer.write(more)
                        # without reading: what the server answers fills its buffers
                        async with asyncio.timeout(max(0.1, until_s - time.monotonic())):
                            await writer.drain()
                        await asyncio.sleep(pause_s)
                        if not more:
                            break
                    await asyncio.sleep(max(0.0, until_s - time.monotonic()) if not more else 0)
                finally:
                    writer.transport.abort()
            await asyncio.sleep(0.1)

    async def all_of_them() -> None:
        await asyncio.gather(*(one() for _ in range(CONNECTIONS)))

    asyncio.run(all_of_them())


def _stay_on(core: int) -> None:
    """Run this process on one core (0: the server's and the client's; 1: the attacker's)."""
    if len(CORES) > 1:
        os.sched_setaffinity(0, {CORES[core]})


def _files() -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 8_192 if most == resource.RLIM_INFINITY else min(8_192, most)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


def ask(port: int, going: Callable[[], bool]) -> tuple[list[float], int]:
    """Ask one request after the other; return the waits in ms of those answered, and the failed."""
    waits, failed = [], 0
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    headers = {"Authorization": f"Bearer {TOKEN}"}
    while going():
        began = time.perf_counter()
        try:
            connection.request("POST", PATH, BODY, headers)
            answer = connection.getresponse()
            answer.read()
            if answer.status == 200:
                waits.append(1000 * (time.perf_counter() - began))
            else:
                failed += 1
        except (OSError, http.client.HTTPException):
            failed += 1
            connection.close()
        time.sleep(0.005)
    connection.close()
    return waits, failed


def warm_up(port: int) -> None:
    """Ask until the server has compiled, and answers twenty requests in a row.

    Raises TimeoutError if it does not within two minutes.
    """
    until_s = time.monotonic() + 120.0
    while len(ask(port, iter([True] * 20 + [False]).__next__)[0]) < 20:
        if time.monotonic() > until_s:
            raise TimeoutError("expected answers of the server within 120 s, got none")


@contextlib.contextmanager
def running(target: Callable[[Connection], None]) -> Iterator[tuple[int, psutil.Process]]:
    """Run a server or a decoy; yield its port and process."""
    spawning = multiprocessing.get_context("spawn")
    here, there = spawning.Pipe()
    process = spawning.Process(target=target, args=(there,), daemon=True)
    process.start()
    try:
        port = here.recv()
        assert process.pid is not None
        yield port, psutil.Process(process.pid)
    finally:
        process.terminate()
        process.join(10)


def _cores(process: psutil.Process) -> float:
    """Return the processor time of a process in seconds; 0 once it has ended."""
    with contextlib.suppress(psutil.Error):
        used = process.cpu_times()
        return float(used.user + used.system)
    return 0.0


class Attacked:
    """The client's waits during one attack, and what the processes used meanwhile."""

    def __init__(
        self, target: int, asked: int, server: psutil.Process, name: str, seconds: float
    ) -> None:
        """target: port that is attacked. asked: port that the client asks."""
        spawning = multiprocessing.get_context("spawn")
        attacker = spawning.Process(target=attack, args=(target, name, seconds), daemon=True)
        before_s, self.peak_bytes, self.attacker_s = _cores(server), server.memory_info().rss, 0.0
        attacker.start()
        assert attacker.pid is not None
        watched = psutil.Process(attacker.pid)

        def going() -> bool:
            self.peak_bytes = max(self.peak_bytes, server.memory_info().rss)
            self.attacker_s = max(self.attacker_s, _cores(watched))
            return attacker.is_alive()

        self.waits, self.failed = ask(asked, going)
        attacker.join()
        self.server_s = _cores(server) - before_s
        self.waits = self.waits or [float("inf")]


def measure(name: str, seconds: float) -> dict[str, Any]:
    """Run one attack on a server of its own; return its figures."""
    with running(serve) as (port, process), running(decoy) as (decoy_port, _):
        warm_up(port)
        until_s = time.monotonic() + seconds
        calm, _ = ask(port, lambda: time.monotonic() < until_s)
        beside = Attacked(decoy_port, port, process, name, seconds)
        before = process.memory_info().rss
        under = Attacked(port, port, process, name, seconds)
        after, _ = ask(port, iter([True] * 20 + [False]).__next__)
    calm_ms = np.percentile(calm, 99)
    return {
        "memory": round(under.peak_bytes / before, 2),
        "p50": round(float(np.median(under.waits) / np.median(calm)), 2),
        "p99": round(float(np.percentile(under.waits, 99) / calm_ms), 2),
        "p99_beside": round(float(np.percentile(beside.waits, 99) / calm_ms), 2),
        "calm_p99_ms": round(float(calm_ms), 2),
        "attacker_cores": round(under.attacker_s / seconds, 2),
        "server_cores": round(under.server_s / seconds, 2),
        "answered": len(under.waits),
        "failed": under.failed,
        "answered_afterwards": len(after),
    }


def main() -> None:
    """Run all attacks."""
    options = bench_parser("hostile", __doc__)
    options.add_argument("--only", choices=ATTACKS)
    chosen = options.parse_args()
    seconds = 3.0 if chosen.quick else 60.0
    _stay_on(0)
    names = [chosen.only] if chosen.only else list(ATTACKS)
    console, figures = Console(stderr=chosen.json), {}
    table = Table("attack", "memory", "p50", "p99", "beside", "calm ms", "attacker", "server")
    for count in ("answered", "failed", "afterwards"):
        table.add_column(count)
    table.columns[0].no_wrap = True
    for name in names:
        figures[name] = measure(name, seconds)
        table.add_row(name, *map(str, figures[name].values()))
        console.print(f"{name}: {figures[name]}")
    console.print(table)
    if chosen.json:
        print(json.dumps(figures))


if __name__ == "__main__":
    main()
