"""Tells requests of this machine from those that a page of another site sends through its browser.

A server on a loopback address without tokens trusts every process of its machine. A browser is such
a process, and runs the pages of any site. The name of a site may point at 127.0.0.1 (DNS
rebinding). Its page then has the same origin as the server, but the wrong `Host`. A POST needs no
consent of the server, so `Origin` is compared as well.
"""

import ipaddress
from functools import lru_cache
from urllib.parse import urlsplit

_SENDERS = 256


def is_this_machine(host: str) -> bool:
    """Return whether `host` is a loopback address, which only processes of this machine reach."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@lru_cache(_SENDERS)
def is_foreign(host: str, origin: str | None) -> bool:
    """Return whether these headers are those of a page of another site."""
    try:
        named = urlsplit(f"//{host}").hostname or ""
        if origin is not None and urlsplit(origin).netloc != host:
            return True
    except ValueError:
        return True
    return not is_this_machine(named)
