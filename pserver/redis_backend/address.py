"""Where the parameter server is: its URL, taken apart, and never printed with its password.

redis://[user:password@]host:port[/database]           one server
redis+cluster://[user:password@]host:port[,host:port]  a cluster; any of its nodes will do
rediss://, rediss+cluster://                           the same over TLS

What TLS needs beyond the system's own authorities stands behind the host, under the names that
redis-py has for it: ?ssl_ca_certs=FILE&ssl_certfile=FILE&ssl_keyfile=FILE&ssl_check_hostname=false.
A server's certificate is always verified: a password is not told to whoever answers.

How a connection to a server is made, in the words of redis-py.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from headrace.pserver.errors import StoreError

if TYPE_CHECKING:
    from redis.connection import Connection


SETTING = "--redis / HEADRACE_REDIS"
_SCHEMES = ("redis", "redis+cluster", "rediss", "rediss+cluster")
_PORT = 6379
TLS_FILES = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
_PARAMETERS = (*TLS_FILES, "ssl_check_hostname")
_WORDS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


@dataclass(frozen=True, slots=True)
class RedisAddress:
    """What a store's URL says."""

    hosts: tuple[tuple[str, int], ...]
    cluster: bool
    tls: bool = False
    database: int = 0
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    ssl_ca_certs: str | None = None
    """File of the authorities to trust (PEM); None: those that the system trusts."""
    ssl_certfile: str | None = None
    """File of our certificate (PEM), where the server asks for one."""
    ssl_keyfile: str | None = None
    """File of its key, if that is another one."""
    ssl_check_hostname: bool = True
    """Whether the certificate must name the host; nodes of a cluster may only know addresses."""

    def __str__(self) -> str:
        return ", ".join(f"{host}:{port}" for host, port in self.hosts)


def parse_address(url: str) -> RedisAddress:
    """Return what `url` says. Raises StoreError, without the password, if it is not such a URL."""
    try:
        parts = urlsplit(url)
    except ValueError:  # its message may repeat the password
        raise _bad("a URL", "one that cannot be taken apart") from None
    if parts.scheme not in _SCHEMES:
        raise _bad(f"a URL beginning {'://, '.join(_SCHEMES)}://", parts.scheme or "no scheme")
    login, _, places = parts.netloc.rpartition("@")
    if "@" in parts.path + parts.query + parts.fragment or parts.fragment:
        raise _bad("the characters / ? # @ of a user or password as %2F %3F %23 %40", "them plain")
    user, colon, password = login.partition(":")
    cluster = parts.scheme.endswith("+cluster")
    database = parts.path.strip("/")
    if database and (cluster or not database.isdecimal()):
        raise _bad("a database number, and only for one server", repr(database))
    hosts = tuple(_host(place) for place in places.split(","))
    if len(hosts) > 1 and not cluster:
        raise _bad("one host, or redis+cluster://", places)
    tls = parts.scheme.startswith("rediss")
    return RedisAddress(
        hosts,
        cluster,
        tls=tls,
        database=int(database or 0),
        user=unquote(user) or None,
        password=unquote(password) if colon else None,
        **_tls_parameters(parts.query, tls=tls),
    )


def with_login(url: str, user: str | None, password: str | None) -> str:
    """Return the URL with user and password added where it names none itself."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return url  # parse_address says what is wrong with it
    login, _, places = parts.netloc.rpartition("@")
    found_user, colon, found_password = login.partition(":")
    user = found_user or quote(user or "", safe="")
    secret = f":{found_password if colon else quote(password or '', safe='')}"
    if not (colon or password):
        secret = ""
    return parts._replace(netloc=f"{user}{secret}@{places}" if user or secret else places).geturl()


def without_login(url: str) -> str:
    """Return the URL as it may be shown: without user and password."""
    address = parse_address(url)
    scheme, _, _ = url.partition("://")
    places = ",".join(
        f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in address.hosts
    )
    return f"{scheme}://{places}" + (f"/{address.database}" if address.database else "")


def _tls_parameters(query: str, *, tls: bool) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in _PARAMETERS:
            raise _bad(f"after ? only {', '.join(_PARAMETERS)}", name)
        if not tls:
            raise _bad(f"rediss:// for {name}", "redis://, which has no TLS")
        found[name] = value
    if "ssl_check_hostname" in found:
        word = found["ssl_check_hostname"].lower()
        if word not in _WORDS:
            raise _bad("ssl_check_hostname=true or false", repr(word))
        found["ssl_check_hostname"] = _WORDS[word]
    if "ssl_keyfile" in found and "ssl_certfile" not in found:
        raise _bad("ssl_certfile beside ssl_keyfile", "the key alone")
    return found


def _host(place: str) -> tuple[str, int]:
    host, port = place, ""
    if not place.endswith("]"):  # an IPv6 address without port
        head, colon, tail = place.rpartition(":")
        host, port = (head, tail) if colon else (place, "")
    host = host.removeprefix("[").removesuffix("]")
    if not host or (port and not (port.isdecimal() and int(port) < 65536)):
        # what follows the colon may be a password whose @host was forgotten
        raise _bad("host:port", f"the host {host!r} and a port that is none")
    return host, int(port or _PORT)


def _bad(expected: str, found: str) -> StoreError:
    return StoreError(f"{SETTING}: expected {expected}, found {found}")


def connection_options(address: RedisAddress) -> dict[str, Any]:
    """Return all but host, port and limits. Raises StoreError if a file of TLS is not there."""
    options: dict[str, Any] = {
        "connection_class": redis.SSLConnection if address.tls else redis.Connection,
        "db": address.database,
        "username": address.user,
        "password": address.password,
        "protocol": 2,
        "retry": Retry(NoBackoff(), 0),  # never sent twice behind our back
        "driver_info": None,
        "socket_keepalive": True,
    }
    if address.tls:
        for name in TLS_FILES:
            options[name] = getattr(address, name)
            if options[name] is not None and not Path(options[name]).is_file():
                raise StoreError(
                    f"{SETTING}: expected a file for {name}, found none at {options[name]}"
                )
        options["ssl_check_hostname"] = address.ssl_check_hostname
        options["redis_connect_func"] = _greet
    return options


def _greet(connection: Connection) -> None:
    """Exchange a first word over TLS.

    What TLS 1.3 sends after the handshake lies unread before the first answer, and the pool takes a
    connection with something to read for one that is out of step.
    """
    connection.on_connect()  # type: ignore[no-untyped-call]
    connection.send_command("PING")  # type: ignore[no-untyped-call]
    connection.read_response()
