"""Why a collector cannot start. What it has to say to clients is in `answer`."""

from __future__ import annotations

from ingest.errors import StreamError


class AddressTaken(StreamError):
    """The address to listen on cannot be had."""

    def __init__(self, host: str, port: int, setting: str, reason: str) -> None:
        super().__init__(f"cannot listen on {host}:{port} ({reason}): name another {setting}, or 0")


class BadTokens(StreamError):
    """The tokens cannot be used, or there are none where there must be."""
