"""The state of each server behind a store: settings, figures, place in the cluster.

Nothing here judges: `deploy.operations` does. A server that does not answer, or does not permit a
command to this user, is part of the result.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.pserver.errors import AccessRefused, StoreError, Unreachable
from headrace.pserver.redis_backend.cluster_client import ClusterClient
from headrace.pserver.redis_backend.node_connection import Place
from headrace.pserver.redis_backend.server_requirements import functions_version

SETTINGS = (
    *("maxmemory", "maxmemory-policy", "appendonly", "save", "stop-writes-on-bgsave-error"),
    *("repl-backlog-size", "client-output-buffer-limit"),
    *("hash-max-listpack-value", "hash-max-listpack-entries"),
    *("cluster-require-full-coverage", "cluster-node-timeout"),
)
"""Settings that matter to headrace, by their names in redis.conf."""


class ClusterMember(NamedTuple):
    """One server as the other nodes see it: a line of CLUSTER NODES."""

    place: Place
    identity: str = ""
    flags: frozenset[str] = frozenset({"master"})
    """In the cluster's terms: master, slave, fail? (suspected), fail, handshake, noaddr."""
    primary: str = ""
    """`host:port` of its primary; empty for a primary."""
    slots: int = 0
    moving: int = 0
    """Slots that are migrating to it or from it."""

    @property
    def name(self) -> str:
        """host:port, as in errors."""
        return f"{self.place[0]}:{self.place[1]}"


@dataclass(frozen=True, slots=True)
class NodeSurvey:
    """One server, as the other nodes see it and by its own figures."""

    member: ClusterMember
    trouble: str | None = None
    """Its error, if it did not answer; the rest is then empty."""
    info: Mapping[str, str] = field(default_factory=dict)
    """INFO, and CLUSTER INFO in a cluster."""
    settings: Mapping[str, str] | None = None
    """Those of SETTINGS that it has; None: not permitted to this user."""
    functions: int | None = None
    """Version of the functions; 0: missing; None: not permitted to this user."""
    ahead_ms: float = 0.0
    """Its clock minus ours, with an error of at most `unsure_ms`."""
    unsure_ms: float = 0.0

    @property
    def name(self) -> str:
        """host:port."""
        return self.member.name

    @property
    def answers(self) -> bool:
        """Whether it answered."""
        return self.trouble is None

    @property
    def replica(self) -> bool:
        """Whether it is a replica."""
        return bool(self.member.primary)

    @property
    def clustered(self) -> bool:
        """Whether it is a node of a cluster."""
        return self.info.get("cluster_enabled") == "1"


class NodeMemory(NamedTuple):
    """Memory of one server."""

    node: str
    """host:port."""
    used_bytes: int
    limit_bytes: int
    """maxmemory; the memory of its machine if that is not set."""


def node_memory(nodes: ClusterClient) -> list[NodeMemory]:
    """Return the memory of every server that answers."""
    found = []
    for place in nodes.known():
        try:
            info = parse_info(nodes.ask(place, "INFO", "memory").decode())
        except StoreError:
            continue
        limit = int(info.get("maxmemory", 0)) or int(info.get("total_system_memory", 0))
        found.append(NodeMemory(f"{place[0]}:{place[1]}", int(info.get("used_memory", 0)), limit))
    return found


def survey_nodes(nodes: ClusterClient, now_ms: Callable[[], float]) -> list[NodeSurvey]:
    """Survey every server, replicas included. Raises Unreachable if no known server answers."""
    return [_survey(nodes, member, now_ms) for member in _members(nodes)]


def parse_info(text: str) -> dict[str, str]:
    """Return the fields of INFO or CLUSTER INFO by name."""
    pairs = (line.partition(":") for line in text.splitlines() if not line.startswith("#"))
    return {name: value.strip() for name, colon, value in pairs if colon}


def parse_members(text: str, answering: Place, places: Mapping[str, Place]) -> list[ClusterMember]:
    """Return the lines of CLUSTER NODES, primaries first.

    `places`: by identity, the addresses for clients, as in CLUSTER SLOTS; the default is the
    address that the other nodes use. A node without a host of its own has that of `answering`.
    """
    lines = [line.split() for line in text.splitlines() if line]
    found: dict[str, Place] = {}
    for identity, where, *_ in lines:
        host, _, port = where.partition("@")[0].rpartition(":")
        found[identity] = places.get(identity, (host or answering[0], int(port)))
    members = []
    for identity, _, flags, primary, *rest in lines:
        slots = [text for text in rest[4:] if not text.startswith("[")]
        above = "" if primary == "-" or primary not in found else "{}:{}".format(*found[primary])
        members.append(
            ClusterMember(
                found[identity],
                identity,
                frozenset(flags.split(",")) - {"myself"},
                above,
                sum(_width(text) for text in slots),
                len(rest[4:]) - len(slots),
            )
        )
    return sorted(members, key=lambda member: (bool(member.primary), member.name))


def _width(slots: str) -> int:
    first, _, last = slots.partition("-")
    return int(last or first) - int(first) + 1


def _members(nodes: ClusterClient) -> list[ClusterMember]:
    trouble: Unreachable | None = None
    for place in nodes.known():
        try:
            info = parse_info(nodes.ask(place, "INFO").decode())
            if info.get("cluster_enabled") != "1":
                return [ClusterMember(place), *_replicas(info, place)]
            places: dict[str, Place] = {}
            for _, _, *holders in nodes.ask(place, "CLUSTER", "SLOTS"):
                for host, port, identity, *_ in holders:
                    places[identity.decode()] = ((host or b"").decode() or place[0], int(port))
            return parse_members(nodes.ask(place, "CLUSTER", "NODES").decode(), place, places)
        except Unreachable as error:
            trouble = error
    assert trouble is not None
    raise trouble


def _replicas(info: Mapping[str, str], primary: Place) -> list[ClusterMember]:
    """Return the replicas of one server, as its INFO lists them."""
    found = []
    for number in range(int(info.get("connected_slaves", "0"))):
        fields = dict(pair.split("=", 1) for pair in info[f"slave{number}"].split(","))
        place = fields["ip"], int(fields["port"])
        found.append(ClusterMember(place, "", frozenset({"slave"}), "{}:{}".format(*primary)))
    return found


def _survey(nodes: ClusterClient, member: ClusterMember, now_ms: Callable[[], float]) -> NodeSurvey:
    place = member.place
    try:
        info = parse_info(nodes.ask(place, "INFO").decode())
        if info.get("cluster_enabled") == "1":
            info |= parse_info(nodes.ask(place, "CLUSTER", "INFO").decode())
        before_ms = now_ms()
        seconds, microseconds = map(int, nodes.ask(place, "TIME"))
        after_ms = now_ms()
        clock_ms = seconds * 1000 + microseconds / 1000
        return NodeSurvey(
            member,
            info=info,
            settings=_settings(nodes, place),
            functions=_functions(nodes, place),
            ahead_ms=clock_ms - (before_ms + after_ms) / 2,
            unsure_ms=(after_ms - before_ms) / 2,
        )
    except StoreError as error:
        return NodeSurvey(member, trouble=str(error))


def _settings(nodes: ClusterClient, place: Place) -> dict[str, str] | None:
    try:
        flat = [word.decode() for word in nodes.ask(place, "CONFIG", "GET", *SETTINGS)]
    except Unreachable:
        raise
    except StoreError:  # not permitted; or unknown, as in some managed services
        return None
    return dict(zip(flat[::2], flat[1::2], strict=True))


def _functions(nodes: ClusterClient, place: Place) -> int | None:
    try:
        return functions_version(nodes.ask, place)
    except AccessRefused:
        return None
