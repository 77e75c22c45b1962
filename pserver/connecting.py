"""How a connection to a server is made, in the words of redis-py."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from pserver.address import SETTING, TLS_FILES
from pserver.errors import StoreError

if TYPE_CHECKING:
    from redis.connection import Connection

    from pserver.address import Address


def connection_options(address: Address) -> dict[str, Any]:
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
