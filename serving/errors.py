"""What a server has to say when it cannot answer, or cannot start."""

from __future__ import annotations

import msgspec


class ServingError(Exception):
    """A server cannot start; the message names the setting to change."""


class AddressTaken(ServingError):
    """The address to listen on cannot be had."""

    def __init__(self, host: str, port: int, reason: str) -> None:
        super().__init__(
            f"cannot listen on {host}:{port} ({reason}): name another --port / HEADRACE_PORT, or 0"
        )


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """Why a request has no prediction: the one shape of every error."""

    field: str
    """Path in the request, such as `candidates[3].price`; empty if none is at fault."""
    expected: str
    found: str


class RefusalBody(msgspec.Struct, frozen=True):
    """A refusal as it travels."""

    error: Refusal


class Refused(Exception):
    """A request is refused with this status and reason."""

    def __init__(self, status: int, refusal: Refusal) -> None:
        super().__init__(f"{refusal.field}: expected {refusal.expected}, found {refusal.found}")
        self.status, self.refusal = status, refusal
