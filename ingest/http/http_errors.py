"""TODO."""

from __future__ import annotations

import msgspec

from headrace.ingest.errors import StreamError


class AddressTaken(StreamError):
    """The address to listen on cannot be had."""

    def __init__(self, host: str, port: int, setting: str, reason: str) -> None:
        super().__init__(f"cannot listen on {host}:{port} ({reason}): name another {setting}, or 0")


class BadTokens(StreamError):
    """The tokens cannot be used, or there are none where there must be."""


class RequestRefusal(msgspec.Struct, frozen=True, kw_only=True):
    """Why a whole request is refused."""

    field: str
    """The header at fault; empty for the body, or if nothing of the request is."""
    expected: str
    found: str


class RequestRefused(Exception):
    """A request is refused as a whole: with this status, and what is wrong."""

    def __init__(self, status: int, field: str, expected: str, found: str) -> None:
        super().__init__(f"{field}: expected {expected}, found {found}")
        self.status = status
        self.refusal = RequestRefusal(field=field, expected=expected, found=found)
