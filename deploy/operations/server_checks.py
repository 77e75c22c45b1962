"""What is wrong with the servers of a store. Pure: from what they say of themselves to findings.

The limits are those of DESIGN's "operating facts", each with its reason. Every check takes all
servers and yields what it finds; what a server does not tell this user is not judged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.deploy.operations.check_result import CheckResult, Severity
from headrace.pserver.redis_backend import LIBRARY_VERSION

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headrace.pserver.inspection import NodeSurvey

_MIB = 1 << 20
LEAST_VERSION = 7
"""Of Redis: the first with Functions. Valkey says 7.2 for its own."""
LEAST_BACKLOG_BYTES = 512 * _MIB
"""At 100 MB/s of log a replica may then be away for five seconds without copying everything."""
LEAST_BUFFER_BYTES = (1024 * _MIB, 512 * _MIB)
"""Hard and soft limit of what waits for a replica. A replica that is cut off copies everything,
which fills the buffer again: at the defaults (256 and 64 MB) it never ends."""
TIGHT, FULL = 0.8, 1.0
"""Of maxmemory. A rewrite of the append-only file and the replicas' buffers want room as well."""
UNLIMITED_SHARE = 0.5
"""Of the machine's memory, beyond which no limit at all ends in the kernel killing the server."""
MOST_SKEW_MS = 1_000
"""A tenth of a lease: what a failover may add to one or take off it."""
MOST_NODE_TIMEOUT_MS = 60_000
"""After which a dead primary is replaced; learners wait as long with its buckets."""
SLOTS = 16384


def check_servers(nodes: Sequence[NodeSurvey]) -> Iterator[CheckResult]:
    """Every server answers, is recent enough, and tells us what we ask."""
    for node in nodes:
        serves = not node.replica and (node.member.slots or not node.member.identity)
        if node.trouble is not None:
            yield CheckResult(
                Severity.BROKEN if serves else Severity.WARNING,
                "servers",
                node.name,
                "an answer",
                node.trouble,
                "start it again, or let CLUSTER FAILOVER TAKEOVER at its replica replace it",
            )
            continue
        version = node.info.get("redis_version", "0")
        if int(version.partition(".")[0]) < LEAST_VERSION:
            yield CheckResult(
                Severity.BROKEN,
                "servers",
                node.name,
                f"Redis {LEAST_VERSION} or later, or Valkey",
                f"Redis {version}",
                "upgrade the server",
            )
        if node.info.get("loading") == "1":
            yield CheckResult(
                Severity.BROKEN,
                "servers",
                node.name,
                "a server that is ready",
                "it is loading its data",
                "wait",
            )
        if node.settings is None:
            yield CheckResult(
                Severity.NOTE,
                "servers",
                node.name,
                "an answer to CONFIG GET",
                "this user may not ask: layout, replication and snapshots' settings are not judged",
                "headrace pserver acl: look with the role operator",
            )


def check_functions(nodes: Sequence[NodeSurvey]) -> Iterator[CheckResult]:
    """Every server has our functions, of the version that this program brings."""
    for node in nodes:
        if not node.answers or (node.clustered and not node.replica and not node.member.slots):
            continue
        expected = f"functions of version {LIBRARY_VERSION}"
        if node.functions is None:
            remedy = "headrace pserver acl: look with the role operator"
            found = "this user may not ask"
            yield CheckResult(Severity.NOTE, "functions", node.name, expected, found, remedy)
        elif node.functions > LIBRARY_VERSION:
            found = f"version {node.functions}, of a newer headrace"
            remedy = "upgrade headrace here"
            yield CheckResult(Severity.BROKEN, "functions", node.name, expected, found, remedy)
        elif node.functions < LIBRARY_VERSION:
            found = f"version {node.functions}" if node.functions else "none"
            remedy = "headrace pserver init, which loads them (so does every learner that starts)"
            if node.replica:
                remedy = f"they come with replication from {node.member.primary}: see there"
            yield CheckResult(Severity.WARNING, "functions", node.name, expected, found, remedy)


def check_memory(nodes: Sequence[NodeSurvey]) -> Iterator[CheckResult]:
    """Nothing is evicted, and there is room."""
    for node in nodes:
        if not node.answers:
            continue
        used = int(node.info.get("used_memory", 0))
        limit = int(node.info.get("maxmemory", 0))
        policy = node.info.get("maxmemory_policy", "noeviction")
        if policy != "noeviction":
            yield CheckResult(
                Severity.BROKEN if limit and not node.replica else Severity.WARNING,
                "memory",
                node.name,
                "maxmemory-policy noeviction: an evicted row is a model that lost it in silence",
                policy,
                "CONFIG SET maxmemory-policy noeviction",
            )
        if limit:
            yield from _limited(node, used, limit)
        else:
            yield from _unlimited(node, used)


def _limited(node: NodeSurvey, used: int, limit: int) -> Iterator[CheckResult]:
    if used < TIGHT * limit or node.replica:  # a replica has what its primary has
        return
    full = used >= FULL * limit
    yield CheckResult(
        Severity.BROKEN if full else Severity.WARNING,
        "memory",
        node.name,
        f"less than {TIGHT:.0%} of maxmemory used",
        f"{used / limit:.0%}" + (": learners' pushes are refused until there is room" * full),
        "raise maxmemory, add shards, or let rows go: [expiry] and [admission] in the spec",
    )


def _unlimited(node: NodeSurvey, used: int) -> Iterator[CheckResult]:
    machine = int(node.info.get("total_system_memory", 0))
    heavy = machine and used > UNLIMITED_SHARE * machine
    yield CheckResult(
        Severity.WARNING if heavy else Severity.NOTE,
        "memory",
        node.name,
        "maxmemory, at which learners wait instead of the kernel ending the server",
        "no limit" + (f", and {used / machine:.0%} of the machine's memory used" if heavy else ""),
        "CONFIG SET maxmemory BYTES, some two thirds of what the server may have",
    )


def check_persistence(nodes: Sequence[NodeSurvey]) -> Iterator[CheckResult]:
    """What a server holds survives its restart, and it can write it down."""
    for node in nodes:
        if not node.answers:
            continue
        info = node.info
        if info.get("aof_enabled") != "1":
            # where the settings are not to be seen, an RDB file that was ever written will do
            saves = bool((node.settings or {}).get("save", info.get("rdb_saves", "") != "0"))
            yield CheckResult(
                Severity.WARNING if saves else Severity.BROKEN,
                "persistence",
                node.name,
                "appendonly yes: at most a second is lost, and learned again from Kafka",
                "RDB snapshots alone: a restart goes minutes back"
                if saves
                else "nothing is kept: a restart comes back empty and has to be restored",
                "CONFIG SET appendonly yes",
            )
        elif info.get("aof_last_write_status", "ok") != "ok":
            yield CheckResult(
                Severity.BROKEN,
                "persistence",
                node.name,
                "aof_last_write_status ok",
                f"{info['aof_last_write_status']}: writes are refused (MISCONF)",
                "make room on the disk; it goes on by itself",
            )
        elif info.get("aof_last_bgrewrite_status", "ok") != "ok":
            yield CheckResult(
                Severity.WARNING,
                "persistence",
                node.name,
                "aof_last_bgrewrite_status ok",
                f"{info['aof_last_bgrewrite_status']}: the append-only file only grows",
                "see the server's log; room on the disk and memory for a fork; then BGREWRITEAOF",
            )
        settings = node.settings or {}
        stops = settings.get("save") and settings.get("stop-writes-on-bgsave-error") == "yes"
        if stops and info.get("rdb_last_bgsave_status", "ok") != "ok":
            yield CheckResult(
                Severity.BROKEN,
                "persistence",
                node.name,
                "rdb_last_bgsave_status ok",
                f"{info['rdb_last_bgsave_status']}: writes are refused (MISCONF)",
                'make room on the disk, then BGSAVE; or, with appendonly yes, CONFIG SET save ""',
            )


def check_replication(nodes: Sequence[NodeSurvey]) -> Iterator[CheckResult]:
    """A replica that was away for seconds catches up, and all are in step."""
    for node in nodes:
        if node.replica and node.answers and node.info.get("master_link_status") != "up":
            yield CheckResult(
                Severity.WARNING,
                "replication",
                node.name,
                f"a link to its primary {node.member.primary}",
                f"master_link_status {node.info.get('master_link_status', 'not known')}",
                "see both servers' logs; if it copies everything again and again, the next two",
            )
        settings = node.settings or {}
        backlog = int(settings.get("repl-backlog-size", LEAST_BACKLOG_BYTES))
        if backlog < LEAST_BACKLOG_BYTES:
            yield CheckResult(
                Severity.WARNING,
                "replication",
                node.name,
                f"repl-backlog-size {LEAST_BACKLOG_BYTES // _MIB}mb or more",
                f"{backlog / _MIB:.0f}mb: less than a second of a fast learner's log",
                f"CONFIG SET repl-backlog-size {LEAST_BACKLOG_BYTES // _MIB}mb",
            )
        hard, soft = _replica_buffer(settings.get("client-output-buffer-limit", ""))
        if 0 < hard < LEAST_BUFFER_BYTES[0] or 0 < soft < LEAST_BUFFER_BYTES[1]:
            yield CheckResult(
                Severity.WARNING,
                "replication",
                node.name,
                "client-output-buffer-limit of replicas of 1gb and 512mb or more",
                f"{hard / _MIB:.0f}mb and {soft / _MIB:.0f}mb: a replica may never catch up",
                'CONFIG SET client-output-buffer-limit "replica 2gb 1gb 60"',
            )


def _replica_buffer(setting: str) -> tuple[int, int]:
    """Return the hard and the soft limit; 0: none."""
    words = setting.split()
    for place, word in enumerate(words):
        if word in ("slave", "replica"):
            return int(words[place + 1]), int(words[place + 2])
    return 0, 0


def check_clocks(nodes: Sequence[NodeSurvey]) -> Iterator[CheckResult]:
    """The servers' clocks agree, since leases run on them."""
    asked = [node for node in nodes if node.answers]
    if not asked:
        return
    middle = sorted(node.ahead_ms for node in asked)[len(asked) // 2]
    for node in asked:
        off_ms = node.ahead_ms - middle
        if abs(off_ms) - node.unsure_ms > MOST_SKEW_MS:
            yield CheckResult(
                Severity.WARNING,
                "clocks",
                node.name,
                f"clocks of the servers within {MOST_SKEW_MS / 1000:g} s",
                f"{abs(off_ms) / 1000:,.1f} s {'ahead of' if off_ms > 0 else 'behind'} the others",
                "run an NTP client on that machine",
            )
    if abs(middle) > MOST_SKEW_MS + max(node.unsure_ms for node in asked):
        yield CheckResult(
            Severity.WARNING,
            "clocks",
            "this machine",
            f"the servers' time within {MOST_SKEW_MS / 1000:g} s",
            f"{abs(middle) / 1000:,.1f} s {'behind' if middle > 0 else 'ahead of'} them",
            "run an NTP client here; until then ages that are shown here are wrong by as much",
        )
