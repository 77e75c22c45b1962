"""Checks the servers of a store from their INFO and CONFIG. Pure functions.

Each limit has its reason beside it. Every check takes all servers and yields findings. Settings
that a server does not show to this user are not checked.
"""

from collections.abc import Iterator, Sequence

from headrace.deploy.operations.check_result import CheckResult, Severity
from headrace.pserver.inspection.nodes import NodeSurvey
from headrace.pserver.redis_backend.server_requirements import LIBRARY_VERSION

_MIB = 1 << 20
LEAST_VERSION = 7
"""First version of Redis with Functions. Valkey reports 7.2."""
LEAST_BACKLOG_BYTES = 512 * _MIB
"""At 100 MB/s of log, a replica may be away for five seconds without a full copy."""
LEAST_BUFFER_BYTES = (1024 * _MIB, 512 * _MIB)
"""Hard and soft limit of the output buffer of a replica. A replica above the limit is disconnected
and copies everything, which fills the buffer again: at the defaults (256 and 64 MB) without end."""
TIGHT, FULL = 0.8, 1.0
"""Shares of maxmemory. The rewrite of the append-only file and replica buffers need room too."""
UNLIMITED_SHARE = 0.5
"""Share of the machine's memory above which the kernel may kill a server without maxmemory."""
MOST_SKEW_MS = 1_000
"""A tenth of a lease. A failover may lengthen or shorten a lease by the skew."""
MOST_NODE_TIMEOUT_MS = 60_000
"""A dead primary is replaced after this time; learners wait with its buckets meanwhile."""
SLOTS = 16384


def check_servers(nodes: Sequence[NodeSurvey]) -> Iterator[CheckResult]:
    """Check that every server answers, has a supported version and shows its settings."""
    for node in nodes:
        serves = not node.replica and (node.member.slots or not node.member.identity)
        if node.trouble is not None:
            yield CheckResult(
                Severity.BROKEN if serves else Severity.WARNING,
                "servers",
                node.name,
                "an answer",
                node.trouble,
                "restart it, or run CLUSTER FAILOVER TAKEOVER on its replica",
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
                "a ready server",
                "the server is loading its data",
                "wait",
            )
        if node.settings is None:
            yield CheckResult(
                Severity.NOTE,
                "servers",
                node.name,
                "an answer to CONFIG GET",
                "this user may not read it: settings of layout, replication and RDB are not "
                "checked",
                "run doctor with the role operator of `headrace pserver acl`",
            )


def check_functions(nodes: Sequence[NodeSurvey]) -> Iterator[CheckResult]:
    """Check that every server has the functions of this version of headrace."""
    for node in nodes:
        if not node.answers or (node.clustered and not node.replica and not node.member.slots):
            continue
        expected = f"functions of version {LIBRARY_VERSION}"
        if node.functions is None:
            remedy = "run doctor with the role operator of `headrace pserver acl`"
            found = "this user may not read them"
            yield CheckResult(Severity.NOTE, "functions", node.name, expected, found, remedy)
        elif node.functions > LIBRARY_VERSION:
            found = f"version {node.functions}, of a newer headrace"
            remedy = "upgrade headrace here"
            yield CheckResult(Severity.BROKEN, "functions", node.name, expected, found, remedy)
        elif node.functions < LIBRARY_VERSION:
            found = f"version {node.functions}" if node.functions else "none"
            remedy = "headrace pserver init loads them (so does the start of a learner)"
            if node.replica:
                remedy = f"see {node.member.primary}: replication copies them from there"
            yield CheckResult(Severity.WARNING, "functions", node.name, expected, found, remedy)


def check_memory(nodes: Sequence[NodeSurvey]) -> Iterator[CheckResult]:
    """Check that no row can be evicted and that memory is free."""
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
                "maxmemory-policy noeviction: an evicted row is a silent loss",
                policy,
                "CONFIG SET maxmemory-policy noeviction",
            )
        if limit:
            yield from _limited(node, used, limit)
        else:
            yield from _unlimited(node, used)


def _limited(node: NodeSurvey, used: int, limit: int) -> Iterator[CheckResult]:
    if used < TIGHT * limit or node.replica:  # a replica has the size of its primary
        return
    full = used >= FULL * limit
    yield CheckResult(
        Severity.BROKEN if full else Severity.WARNING,
        "memory",
        node.name,
        f"less than {TIGHT:.0%} of maxmemory used",
        f"{used / limit:.0%}" + (": pushes of learners are refused until memory is free" * full),
        "raise maxmemory, add shards, or reduce rows: [expiry] and [admission] in the spec",
    )


def _unlimited(node: NodeSurvey, used: int) -> Iterator[CheckResult]:
    machine = int(node.info.get("total_system_memory", 0))
    heavy = machine and used > UNLIMITED_SHARE * machine
    yield CheckResult(
        Severity.WARNING if heavy else Severity.NOTE,
        "memory",
        node.name,
        "maxmemory: learners wait at the limit, and the kernel does not kill the server",
        "no limit" + (f", and {used / machine:.0%} of the machine's memory used" if heavy else ""),
        "CONFIG SET maxmemory BYTES, about two thirds of the server's memory",
    )


def check_persistence(nodes: Sequence[NodeSurvey]) -> Iterator[CheckResult]:
    """Check that data survives a restart, and that the server can write it to disk."""
    for node in nodes:
        if not node.answers:
            continue
        info = node.info
        if info.get("aof_enabled") != "1":
            # without access to the settings, an RDB file that was ever written counts
            saves = bool((node.settings or {}).get("save", info.get("rdb_saves", "") != "0"))
            yield CheckResult(
                Severity.WARNING if saves else Severity.BROKEN,
                "persistence",
                node.name,
                "appendonly yes: at most one second is lost, and learned again from Kafka",
                "RDB snapshots only: a restart loses minutes"
                if saves
                else "no persistence: after a restart the model must be restored",
                "CONFIG SET appendonly yes",
            )
        elif info.get("aof_last_write_status", "ok") != "ok":
            yield CheckResult(
                Severity.BROKEN,
                "persistence",
                node.name,
                "aof_last_write_status ok",
                f"{info['aof_last_write_status']}: writes are refused (MISCONF)",
                "free disk space; the server then resumes",
            )
        elif info.get("aof_last_bgrewrite_status", "ok") != "ok":
            yield CheckResult(
                Severity.WARNING,
                "persistence",
                node.name,
                "aof_last_bgrewrite_status ok",
                f"{info['aof_last_bgrewrite_status']}: the append-only file grows without bound",
                "see the log of the server; free disk space and memory for a fork; then "
                "BGREWRITEAOF",
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
                'free disk space, then BGSAVE; or, with appendonly yes, CONFIG SET save ""',
            )


def check_replication(nodes: Sequence[NodeSurvey]) -> Iterator[CheckResult]:
    """Check that replicas are connected and can catch up after a short absence."""
    for node in nodes:
        if node.replica and node.answers and node.info.get("master_link_status") != "up":
            yield CheckResult(
                Severity.WARNING,
                "replication",
                node.name,
                f"a link to its primary {node.member.primary}",
                f"master_link_status {node.info.get('master_link_status', 'unknown')}",
                "see the logs of both servers; for repeated full copies see the next two findings",
            )
        settings = node.settings or {}
        backlog = int(settings.get("repl-backlog-size", LEAST_BACKLOG_BYTES))
        if backlog < LEAST_BACKLOG_BYTES:
            yield CheckResult(
                Severity.WARNING,
                "replication",
                node.name,
                f"repl-backlog-size {LEAST_BACKLOG_BYTES // _MIB}mb or more",
                f"{backlog / _MIB:.0f}mb: less than a second of the log of a fast learner",
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
    """Return the hard and the soft limit; 0 means no limit."""
    words = setting.split()
    for place, word in enumerate(words):
        if word in ("slave", "replica"):
            return int(words[place + 1]), int(words[place + 2])
    return 0, 0


def check_clocks(nodes: Sequence[NodeSurvey]) -> Iterator[CheckResult]:
    """Check that the clocks of the servers agree, because leases depend on them."""
    reachable = [node for node in nodes if node.answers]
    if not reachable:
        return
    middle = sorted(node.ahead_ms for node in reachable)[len(reachable) // 2]
    for node in reachable:
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
    if abs(middle) > MOST_SKEW_MS + max(node.unsure_ms for node in reachable):
        yield CheckResult(
            Severity.WARNING,
            "clocks",
            "this machine",
            f"the servers' time within {MOST_SKEW_MS / 1000:g} s",
            f"{abs(middle) / 1000:,.1f} s {'behind' if middle > 0 else 'ahead of'} them",
            "run an NTP client here; until then the ages shown here are wrong by as much",
        )
