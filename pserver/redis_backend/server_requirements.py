"""Requirements that a server must meet before this process writes to it.

Functions. A server has one version of functions.lua. A process loads its own version where it finds
an older one or none, and stops where it finds a newer one. The names of the functions that write
hold their version, so a process that is older than the functions cannot call them: the server does
not find the name, and the process compares versions again. *Refused:* comparing versions only when
a process connects. A process that stays connected through an upgrade would call functions whose
arguments it does not match.

`look` only reads, and its name holds no version. Servers of predictions keep on serving while
learners and keepers are upgraded. A change of its arguments or answers needs another name.

Eviction. A server that evicts keys deletes rows, and a learner cannot tell a deleted row from one
that never learned anything. Writers therefore refuse any policy but noeviction, whether or not
`maxmemory` is set now. Read-only processes start anyway, and `headrace pserver doctor` reports it.
"""

from pathlib import Path
from typing import Any, Protocol

from headrace.pserver.errors import StoreError, Unreachable
from headrace.pserver.redis_backend.address import SETTING
from headrace.pserver.redis_backend.node_connection import Place

LIBRARY_VERSION = 4
"""Of functions.lua. Raise both numbers with every change of that file's code."""

_LIBRARY = Path(__file__).with_name("functions.lua")
_UNVERSIONED = frozenset({"look", "version"})


class _Ask(Protocol):
    def __call__(self, place: Place, *words: bytes | str | int) -> Any:
        """Send one command to one node; return the reply. Raises StoreError."""


def function_name(name: str) -> str:
    """Return the name of a function of functions.lua on the server."""
    return f"headrace_{name}" if name in _UNVERSIONED else f"headrace_{name}_{LIBRARY_VERSION}"


def check_functions(ask: _Ask, place: Place) -> None:
    """Load the functions unless the server has them. Raises StoreError if it has newer ones."""
    version = functions_version(ask, place)
    if version > LIBRARY_VERSION:
        raise StoreError(
            f"{SETTING}: expected functions of version {LIBRARY_VERSION} at most, "
            f"got {version} from {place[0]}:{place[1]}: a newer headrace uses this store; "
            "upgrade this process"
        )
    if version < LIBRARY_VERSION:
        try:
            ask(place, "FUNCTION", "LOAD", "REPLACE", _LIBRARY.read_bytes())
        except StoreError as error:
            if "unknown command" not in str(error):
                raise
            raise StoreError(
                f"{SETTING}: expected a server that has the command FUNCTION (Redis 7, Valkey), "
                f"got from {place[0]}:{place[1]}: {error}. Remove rename-command FUNCTION from its "
                "settings, or use a service that allows functions"
            ) from error


def functions_version(ask: _Ask, place: Place) -> int:
    """Return the version of the functions on a server; 0 if it has none. Raises StoreError."""
    try:
        return int(ask(place, "FCALL_RO", function_name("version"), 0))
    except Unreachable:
        raise
    except StoreError as error:
        if not function_is_missing(error):
            raise
        return 0


def function_is_missing(error: Exception) -> bool:
    """Whether a call was refused because the server has no function of that name."""
    return "Function not found" in str(error)


def check_eviction(ask: _Ask, place: Place) -> None:
    """Raise StoreError if the server evicts keys when its memory is full."""
    fields = dict(
        line.split(b":", 1) for line in ask(place, "INFO", "memory").splitlines() if b":" in line
    )
    policy = fields.get(b"maxmemory_policy", b"noeviction").decode()
    if policy != "noeviction":
        raise StoreError(
            f"{SETTING}: expected maxmemory-policy noeviction, got {policy} from "
            f"{place[0]}:{place[1]}: an evicted row is lost without a trace; run "
            "CONFIG SET maxmemory-policy noeviction on every server, replicas too"
        )
