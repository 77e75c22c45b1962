"""Chooses the partition keys of a replay: the request id, or the impression id without one.

Learners score the candidates of a request together, so they should be in one partition. The clicks
of most logs name their impression alone. So the replay remembers the request of each impression for
as long as a click may come: for two label windows of event time at least, and four at most. A later
click is late in any partition.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.ingest.logs.ndjson import Line


class RequestKeys:
    """The keys of lines, which come in the order of event time."""

    def __init__(self, window_ms: int) -> None:
        self._keep_ms, self._began_ms = 2 * window_ms, 0
        self._younger: dict[bytes, bytes] = {}  # impression id -> request id
        self._older: dict[bytes, bytes] = {}

    def key_of(self, line: Line) -> bytes | None:
        """Return the key of the next line; None: any partition will do."""
        if line.key is None:
            return None
        if line.is_click:
            found = self._younger.get(line.key) or self._older.get(line.key)
            return found or line.request or line.key
        if line.request is None:
            return line.key
        if line.time_ms > self._began_ms + self._keep_ms:
            self._older, self._younger = self._younger, {}
            self._began_ms = line.time_ms
        self._younger[line.key] = line.request
        return line.request
