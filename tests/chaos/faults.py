"""Injects each kind of fault, and removes it again.

Everything works without root: signals, limits of other processes (`prlimit`), settings of the
servers, links, and a clock for each process. The clock of the machine is never touched. A full disk
is a limit on the size of files: appends beyond it fail as on a full disk, but new small files can
still be created.
"""

from __future__ import annotations

import contextlib
import math
import re
import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from headrace.deploy.local.services.waiting import wait_until
from headrace.pserver.redis_backend import server_requirements
from tests.chaos.plan import Fault
from tests.faults.shards import (
    Shard,
    full_disk,
    is_primary,
    lose_files,
    shards_of,
    standing_still,
    used_memory,
)

if TYPE_CHECKING:
    from tests.chaos.fleet import Fleet
    from tests.chaos.servers import Servers
    from tests.faults.kafka_cluster import KafkaClusterNode
    from tests.valkey_cluster import ClusterNode

SPARE_BYTES = 8 << 20
"""A process under a memory limit may take this much more than it has."""
LONGEST_STEP_S = 3600.0
REFUSAL_S = 60.0
"""For the processes that must stop after a lost shard or newer functions to do so."""


class Injector:
    """Breaks the servers and the parts of one run."""

    def __init__(self, servers: Servers, fleet: Fleet, snapshots: Path) -> None:
        self._servers, self._fleet, self._snapshots = servers, fleet, snapshots
        self._ways: dict[str, Callable[[Fault], AbstractContextManager[None]]] = {
            "kill a part": self._kill_part,
            "stop a part": self._stop_part,
            "kill a broker": self._kill_broker,
            "stop a broker": self._stop_broker,
            "kill a primary": lambda f: self._kill_node(self._shard(f).primary),
            "stop a primary": lambda f: standing_still(self._shard(f).primary),
            "kill a replica": lambda f: self._kill_node(self._shard(f).replica),
            "ask for a failover": self._fail_over,
            "cut a link to Kafka": lambda f: self._cut(self._broker(f).port),
            "cut a link to Valkey": lambda f: self._cut(self._shard(f).primary.port),
            "freeze a link to Kafka": lambda f: self._freeze(self._broker(f).port),
            "freeze a link to Valkey": lambda f: self._freeze(self._shard(f).primary.port),
            "fill a disk of Kafka": self._fill_broker,
            "fill a disk of Valkey": self._fill_node,
            "fill the memory of Valkey": self._fill_memory,
            "limit the memory of a part": self._limit_part,
            "step a clock": self._step_clock,
            "older functions": self._older_functions,
            "newer functions": self._newer_functions,
            "one more of a part": self._one_more,
            "restore a shard": self._restore,
        }

    def lasting(self, fault: Fault) -> AbstractContextManager[None]:
        """The fault, present while the context is open."""
        return self._ways[fault.kind](fault)

    # ---------------------------------------------------------------- parts of headrace

    @contextlib.contextmanager
    def _kill_part(self, fault: Fault) -> Iterator[None]:
        self._fleet.signal(self._part(fault), signal.SIGKILL)
        yield

    @contextlib.contextmanager
    def _stop_part(self, fault: Fault) -> Iterator[None]:
        pid = self._fleet.pids()[self._part(fault)]
        psutil.Process(pid).suspend()
        yield
        with contextlib.suppress(psutil.NoSuchProcess):
            psutil.Process(pid).resume()

    @contextlib.contextmanager
    def _limit_part(self, fault: Fault) -> Iterator[None]:
        pid = self._fleet.pids()[self._part(fault)]
        allowed = psutil.Process(pid).memory_info().vms + SPARE_BYTES
        before = resource.prlimit(pid, resource.RLIMIT_AS)
        resource.prlimit(pid, resource.RLIMIT_AS, (allowed, before[1]))
        yield
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(pid, resource.RLIMIT_AS, before)

    @contextlib.contextmanager
    def _step_clock(self, fault: Fault) -> Iterator[None]:
        part = self._part(fault)
        self._fleet.step_clock(part, step_of(fault.amount))
        yield
        with contextlib.suppress(FileNotFoundError):
            self._fleet.step_clock(part, 0.0)

    @contextlib.contextmanager
    def _one_more(self, fault: Fault) -> Iterator[None]:
        name = f"{fault.target}-2"
        self._fleet.start(name)
        yield
        self._fleet.end(name)

    @contextlib.contextmanager
    def _newer_functions(self, _: Fault) -> Iterator[None]:
        # the first learner loads them; an older keeper then stops, as documented, until upgraded
        fleet = self._fleet
        fleet.raise_version()
        fleet.start("learner-1")
        stopped = wait_until(lambda: "keeper-1" in fleet.failures(), REFUSAL_S)
        fleet.start("keeper-1")
        yield
        assert stopped, f"expected the older keeper to stop within {REFUSAL_S:g} s, got none"

    # ---------------------------------------------------------------- Kafka

    @contextlib.contextmanager
    def _kill_broker(self, fault: Fault) -> Iterator[None]:
        self._servers.brokers.kill(fault.number + 1)
        yield
        self._servers.brokers.restart(fault.number + 1)

    @contextlib.contextmanager
    def _stop_broker(self, fault: Fault) -> Iterator[None]:
        process = psutil.Process(self._broker(fault).pid)
        process.suspend()
        yield
        process.resume()

    @contextlib.contextmanager
    def _fill_broker(self, fault: Fault) -> Iterator[None]:
        broker = self._broker(fault)
        sizes = [path.stat().st_size for path in (broker.directory / "log").rglob("*.log")]
        before = resource.prlimit(broker.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (max(sizes) + 4096, before[1]))
        yield
        # a broker without a disk that it can write ends itself; one that met no limit lives on
        if broker.alive:
            with contextlib.suppress(ProcessLookupError):
                resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, before)
        if not wait_until(lambda: not broker.alive, 3.0):
            return
        self._servers.brokers.restart(fault.number + 1)

    # ---------------------------------------------------------------- Valkey

    @contextlib.contextmanager
    def _kill_node(self, node: ClusterNode) -> Iterator[None]:
        index = self._servers.valkey.nodes.index(node)
        self._servers.valkey.kill(index)
        yield
        self._servers.valkey.restart(index)

    @contextlib.contextmanager
    def _fill_node(self, fault: Fault) -> Iterator[None]:
        node = self._shard(fault).primary
        with full_disk(node):
            yield

    @contextlib.contextmanager
    def _fail_over(self, fault: Fault) -> Iterator[None]:
        replica = self._shard(fault).replica
        replica.call("CLUSTER", "FAILOVER")
        assert wait_until(lambda: is_primary(replica), REFUSAL_S), "expected a promoted replica"
        yield

    @contextlib.contextmanager
    def _fill_memory(self, fault: Fault) -> Iterator[None]:
        node = self._shard(fault).primary
        node.call("CONFIG", "SET", "maxmemory", used_memory(node))
        yield
        node.call("CONFIG", "SET", "maxmemory", 0)

    @contextlib.contextmanager
    def _older_functions(self, fault: Fault) -> Iterator[None]:
        text = server_requirements.__file__.replace("server_requirements.py", "functions.lua")
        with open(text) as file:  # noqa: PTH123 (the path is that of a module)
            older = re.sub(
                r"\bLIBRARY_VERSION = \d+",
                f"LIBRARY_VERSION = {self._fleet.version - 1}",
                file.read(),
            )
        self._shard(fault).primary.call("FUNCTION", "LOAD", "REPLACE", older)
        yield

    @contextlib.contextmanager
    def _restore(self, fault: Fault) -> Iterator[None]:
        """Take a snapshot, lose a shard, restore it, start what had stopped."""
        fleet, valkey = self._fleet, self._servers.valkey
        spec = ("--model", str(fleet.model.resolve()))
        fleet.run_command("pserver", "snapshot", str(self._snapshots), *spec)
        shard = self._shard(fault)
        for node in (shard.replica, shard.primary):
            valkey.kill(valkey.nodes.index(node))
            lose_files(node)
        for node in (shard.primary, shard.replica):
            valkey.restart(valkey.nodes.index(node))
        stopped = wait_until(lambda: "learner-1" in fleet.failures(), REFUSAL_S)
        fleet.run_command("pserver", "restore", str(self._snapshots), *spec)
        for name in fleet.failures():
            fleet.start(name)
        yield
        assert stopped, f"expected the learner to stop within {REFUSAL_S:g} s, got none"

    # ---------------------------------------------------------------- links and targets

    @contextlib.contextmanager
    def _cut(self, port: int) -> Iterator[None]:
        self._servers.links.cut(port)
        yield
        self._servers.links.mend(port)

    @contextlib.contextmanager
    def _freeze(self, port: int) -> Iterator[None]:
        self._servers.links.freeze(port)
        yield
        self._servers.links.mend(port)

    def _part(self, fault: Fault) -> str:
        return "server" if fault.target == "server" else f"{fault.target}-1"

    def _broker(self, fault: Fault) -> KafkaClusterNode:
        return self._servers.brokers.nodes[fault.number + 1]

    def _shard(self, fault: Fault) -> Shard:
        return shards_of(self._servers.valkey)[fault.number]


def step_of(amount: float) -> float:
    """Return a step of a clock in seconds: one second to an hour, in either direction."""
    return math.copysign(LONGEST_STEP_S ** abs(amount), amount)
