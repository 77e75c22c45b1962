"""Translates errors of the client library and refusals of servers to those of `pserver.errors`.

This is the only place where foreign errors become those of headrace, which are classed by the next
step. The functions of functions.lua refuse with prefixes of their own: MISSING, EXISTS and LEASE.
"""

from redis import exceptions

from headrace.pserver.errors import (
    AccessRefused,
    BucketExists,
    LostLease,
    MissingBucket,
    OutOfMemory,
    StoreError,
    Unreachable,
)
from headrace.pserver.redis_backend.address import SETTING

_LATER = (
    *("LOADING", "TRYAGAIN", "CLUSTERDOWN", "MASTERDOWN", "READONLY", "BUSY", "NOREPLICAS"),
    *("MISCONF", "MOVED", "ASK"),
)
"""Prefixes of temporary refusals: the server did nothing, and a retry may succeed."""
_NEVER = ("NOAUTH", "WRONGPASS", "NOPERM", "DENIED")
"""Prefixes of refusals that only an operator can resolve."""


def translated(error: Exception, node: str) -> StoreError:
    """Return the StoreError for an error of the client library or a refusal of the server."""
    if isinstance(error, StoreError):
        return error
    message = str(error)
    text = f"{node}: {message or type(error).__name__}"
    word = message.partition(" ")[0]
    if isinstance(error, exceptions.OutOfMemoryError) or word == "OOM":
        return OutOfMemory(f"{node} is at its memory limit: {message}")
    if word == "MISSING":
        return MissingBucket(
            f"{text}: its shard restarted without data. Run `headrace pserver restore`"
        )
    if word == "EXISTS":
        return BucketExists(text)
    if word == "LEASE":
        return LostLease(text)
    refused = (
        exceptions.AuthenticationError,
        exceptions.AuthorizationError,
        exceptions.NoPermissionError,
        exceptions.AuthenticationWrongNumberOfArgsError,
    )
    in_function = message.startswith("ACL failure in script")
    if isinstance(error, refused) or word in _NEVER or in_function:
        denied = isinstance(error, exceptions.NoPermissionError) or word == "NOPERM" or in_function
        granted = "; `headrace pserver acl` prints what to grant" if denied else ""
        return AccessRefused(f"{SETTING}: {text}{granted}")
    later = (
        exceptions.ClusterDownError,
        exceptions.AskError,
        exceptions.TryAgainError,
        exceptions.ReadOnlyError,
        exceptions.ConnectionError,
        exceptions.TimeoutError,
        exceptions.InvalidResponse,
        OSError,
    )
    if isinstance(error, later) or word in _LATER:
        if "CERTIFICATE_VERIFY_FAILED" in message:
            text += " Name its authority with ?ssl_ca_certs=FILE."
        return Unreachable(text)
    return StoreError(text)
