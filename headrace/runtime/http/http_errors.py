"""Errors of HTTP servers: addresses, tokens, and requests that are refused as a whole."""

import msgspec


class ListenError(Exception):
    """A process cannot listen. The message names the setting to change."""


class AddressTaken(ListenError):
    """The address to listen on is not available."""

    def __init__(self, host: str, port: int, setting: str, reason: str) -> None:
        super().__init__(f"cannot listen on {host}:{port} ({reason}): set another {setting}, or 0")


class BadTokens(ListenError):
    """The tokens are invalid, or they are missing where a server needs them."""


class RequestRefusal(msgspec.Struct, frozen=True, kw_only=True):
    """The refusal of a whole request."""

    field: str
    """The invalid field or header; empty if the whole body or request is invalid."""
    expected: str
    found: str


class RequestRefused(Exception):
    """A request is refused as a whole, with this HTTP status."""

    def __init__(
        self, status: int, field: str, expected: str, found: str, *, retry_s: int = 1
    ) -> None:
        """retry_s: Retry-After of the statuses 429 and 503."""
        super().__init__(f"{field}: expected {expected}, got {found}")
        self.status, self.retry_s = status, retry_s
        self.refusal = RequestRefusal(field=field, expected=expected, found=found)
