"""Addresses of the parameter server, and the options of connections to it.

    redis://[user:password@]host:port[/database]           one server
    redis+cluster://[user:password@]host:port[,host:port]  a cluster; any of its nodes will do
    rediss://, rediss+cluster://                           the same over TLS

TLS settings follow the host, under the names that redis-py has for them:
?ssl_ca_certs=FILE&ssl_certfile=FILE&ssl_keyfile=FILE&ssl_check_hostname=false. Without
`ssl_ca_certs`, the authorities of the system are trusted. A server's certificate is always
verified, so no other machine receives the password. No message shows the password.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit

import redis
from redis.backoff import NoBackoff
from redis.connection import Connection
from redis.retry import Retry

from headrace.pserver.errors import StoreError

SETTING = "--redis / HEADRACE_REDIS"
_SCHEMES = ("redis", "redis+cluster", "rediss", "rediss+cluster")
_PORT = 6379
TLS_FILES = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
_PARAMETERS = (*TLS_FILES, "ssl_check_hostname")
_WORDS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


@dataclass(frozen=True, slots=True)
class RedisAddress:
    """The parts of a store's URL."""

    hosts: tuple[tuple[str, int], ...]
    cluster: bool
    tls: bool = False
    database: int = 0
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    ssl_ca_certs: str | None = None
    """File of the trusted authorities (PEM); None for those of the system."""
    ssl_certfile: str | None = None
    """File of the client's certificate (PEM), for servers that ask for one."""
    ssl_keyfile: str | None = None
    """File of the certificate's key, unless the certificate's file holds it."""
    ssl_check_hostname: bool = True
    """Whether the certificate must name the host. Cluster nodes may announce addresses only."""

    def __str__(self) -> str:
        return ", ".join(f"{host}:{port}" for host, port in self.hosts)


def parse_address(url: str) -> RedisAddress:
    """Return the parts of `url`. Raises StoreError, without the password, if it is invalid."""
    try:
        parts = urlsplit(url)
    except ValueError:  # its message may repeat the password
        raise _bad("a URL", "one that cannot be parsed") from None
    if parts.scheme not in _SCHEMES:
        raise _bad(f"a URL beginning {'://, '.join(_SCHEMES)}://", parts.scheme or "no scheme")
    login, _, places = parts.netloc.rpartition("@")
    if "@" in parts.path + parts.query + parts.fragment or parts.fragment:
        raise _bad(
            "the characters / ? # @ of a user or password as %2F %3F %23 %40",
            "the characters themselves",
        )
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
    """Return the URL with user and password added where it has none itself."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return url  # parse_address explains the error
    login, _, places = parts.netloc.rpartition("@")
    found_user, colon, found_password = login.partition(":")
    user = found_user or quote(user or "", safe="")
    secret = f":{found_password if colon else quote(password or '', safe='')}"
    if not (colon or password):
        secret = ""
    return parts._replace(netloc=f"{user}{secret}@{places}" if user or secret else places).geturl()


def without_login(url: str) -> str:
    """Return the URL without user and password, to be shown."""
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
        # the text after the colon may be a password whose @host was forgotten
        raise _bad("host:port", f"the host {host!r} with an invalid port")
    return host, int(port or _PORT)


def _bad(expected: str, found: str) -> StoreError:
    return StoreError(f"{SETTING}: expected {expected}, got {found}")


def connection_options(address: RedisAddress) -> dict[str, Any]:
    """Return all options but host, port, timeouts. Raises StoreError if a TLS file is missing."""
    options: dict[str, Any] = {
        "connection_class": redis.SSLConnection if address.tls else redis.Connection,
        "db": address.database,
        "username": address.user,
        "password": address.password,
        "protocol": 2,
        "retry": Retry(
            NoBackoff(), 0
        ),  # commands must not be sent twice without the caller's knowledge
        "driver_info": None,
        "socket_keepalive": True,
    }
    if address.tls:
        for name in TLS_FILES:
            options[name] = getattr(address, name)
            if options[name] is not None and not Path(options[name]).is_file():
                raise StoreError(
                    f"{SETTING}: expected a file for {name}, got {options[name]} without one"
                )
        options["ssl_check_hostname"] = address.ssl_check_hostname
        options["redis_connect_func"] = _greet
    return options


def _greet(connection: Connection) -> None:
    """Exchange a first command over TLS.

    TLS 1.3 sends messages after the handshake, which stay unread until the first answer is read.
    The pool closes connections with unread bytes, because it takes them to be out of step.
    """
    connection.on_connect()  # type: ignore[no-untyped-call]
    connection.send_command("PING")  # type: ignore[no-untyped-call]
    connection.read_response()
