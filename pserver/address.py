"""Where the parameter server is: its URL, taken apart, and never printed with its password.

redis://[user:password@]host:port[/database]         one server
redis+cluster://[user:password@]host:port[,host:port]  a cluster; any of its nodes will do
rediss://, rediss+cluster://                           the same over TLS
"""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from pserver.errors import StoreError

SETTING = "--redis / HEADRACE_REDIS"
_SCHEMES = ("redis", "redis+cluster", "rediss", "rediss+cluster")
_PORT = 6379


@dataclass(frozen=True, slots=True)
class Address:
    """What a store's URL says."""

    hosts: tuple[tuple[str, int], ...]
    cluster: bool
    tls: bool = False
    database: int = 0
    user: str | None = None
    password: str | None = field(default=None, repr=False)

    def __str__(self) -> str:
        return ", ".join(f"{host}:{port}" for host, port in self.hosts)


def parse_address(url: str) -> Address:
    """Return what `url` says. Raises StoreError, without the password, if it is not such a URL."""
    parts = urlsplit(url)
    if parts.scheme not in _SCHEMES:
        raise _bad(f"a URL beginning {'://, '.join(_SCHEMES)}://", f"{parts.scheme or 'no scheme'}")
    login, _, places = parts.netloc.rpartition("@")
    user, colon, password = login.partition(":")
    cluster = parts.scheme.endswith("+cluster")
    database = parts.path.strip("/")
    if database and (cluster or not database.isdecimal()):
        raise _bad("a database number, and only for one server", repr(database))
    hosts = tuple(_host(place) for place in places.split(","))
    if len(hosts) > 1 and not cluster:
        raise _bad("one host, or redis+cluster://", places)
    return Address(
        hosts,
        cluster,
        tls=parts.scheme.startswith("rediss"),
        database=int(database or 0),
        user=unquote(user) or None,
        password=unquote(password) if colon else None,
    )


def _host(place: str) -> tuple[str, int]:
    host, port = place, ""
    if not place.endswith("]"):  # an IPv6 address without port
        head, colon, tail = place.rpartition(":")
        host, port = (head, tail) if colon else (place, "")
    host = host.removeprefix("[").removesuffix("]")
    if not host or (port and not (port.isdecimal() and int(port) < 65536)):
        raise _bad("host:port", repr(place))
    return host, int(port or _PORT)


def _bad(expected: str, found: str) -> StoreError:
    return StoreError(f"{SETTING}: expected {expected}, found {found}")
