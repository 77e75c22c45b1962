"""Reads the repairs of dead letters: from an edited file, or from a function.

The file is the output of `dead-letters --json`, one letter a line, with a corrected `event`.
`"event": null` abandons the event, and a deleted line leaves its letter open. Every line is
validated before any event is sent.

The function is in a small Python file:

    def repair(event, letter):
        event["timestamp_ms"] *= 1000  # they sent seconds
        return event

`event` is None if the message is not a JSON object. `letter` has the reason, the origin, the key,
and the message as text. The returned event is sent; None leaves the letter open.
"""

import runpy
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import orjson

from headrace.ingest.dead_letters.letter import Letter, Origin
from headrace.ingest.dead_letters.letter_retry import DISCARD, Repair, Repairs, why_refused
from headrace.ingest.errors import StreamError
from headrace.runtime.undecodable import UNDECODABLE


class BadRepair(StreamError):
    """A file of repairs is invalid; the message names the line."""


class EditableLetter(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A letter as `show --json` prints it, for editing."""

    topic: str
    partition: int
    offset: int
    append_ms: int
    reason: str = ""
    key: str | None = None
    value: str | None = None
    """The message, if it is not a JSON object; ignored when read back."""
    value_base64: bytes | None = None
    event: dict[str, Any] | msgspec.UnsetType | None = msgspec.UNSET

    @property
    def origin(self) -> Origin:
        """The place the event came from."""
        return Origin(self.topic, self.partition, self.offset, self.append_ms)


def as_line(letter: Letter) -> bytes:
    """Return a letter as a line for editing, without the line's end."""
    event = letter.event
    shown = EditableLetter(
        topic=letter.topic,
        partition=letter.partition,
        offset=letter.offset,
        append_ms=letter.append_ms,
        reason=letter.reason,
        key=letter.key,
    )
    if event is not None:
        shown.event = event
    else:
        shown.value, shown.value_base64 = letter.value, letter.value_base64
    return msgspec.json.encode(shown)


class FileRepairs:
    """Repairs from an edited file. Raises BadRepair."""

    def __init__(self, lines: Iterable[bytes], name: str) -> None:
        self._repairs: dict[Origin, Repair] = {}
        for number, line in enumerate(lines, 1):
            if line.strip():
                self._take(line, f"{name}:{number}")
        self.unused = set(self._repairs)
        """Origins in the file without an open letter, once all letters were read."""

    def repair(self, letter: Letter) -> Repair:
        """Return the repair in the file; None leaves the letter open."""
        self.unused.discard(letter.origin)
        return self._repairs.get(letter.origin)

    def _take(self, line: bytes, where: str) -> None:
        try:
            shown = _decode(line)
        except UNDECODABLE as error:
            raise BadRepair(
                f"{where}: expected a line of `dead-letters --json`, got: {error}"
            ) from error
        if shown.event is msgspec.UNSET:
            raise BadRepair(
                f"{where}: expected `event`, the repaired object, or null to abandon it, got no "
                "`event`"
            )
        if shown.origin in self._repairs:
            raise BadRepair(f"{where}: expected each letter once, got {shown.origin} again")
        if shown.event is None:
            self._repairs[shown.origin] = DISCARD
            return
        reason = why_refused(shown.event)
        if reason is not None:
            raise BadRepair(f"{where}: the joiner would refuse this event again: {reason.value}")
        self._repairs[shown.origin] = shown.event


def function_repairs(path: Path) -> Repairs:
    """Return the repairs of the function `repair` in a Python file. Raises BadRepair."""
    try:
        function = runpy.run_path(str(path)).get("repair")
    except (OSError, SyntaxError) as error:
        raise BadRepair(f"expected a Python file, got: {error}") from error
    if not callable(function):
        raise BadRepair(f"{path}: expected a function repair(event, letter), got none")

    def repair(letter: Letter) -> Repair:
        try:
            repaired = function(letter.event, letter)
            if isinstance(repaired, dict):
                orjson.dumps(repaired)
        except Exception as error:
            raise BadRepair(
                f"{path}: repair failed for {letter.origin}: {type(error).__name__}: {error}"
            ) from error
        if repaired is None or isinstance(repaired, dict):
            return repaired
        raise BadRepair(
            f"{path}: expected repair to return an object or None for {letter.origin}, "
            f"got {type(repaired).__name__}"
        )

    return repair


_decode = msgspec.json.Decoder(EditableLetter).decode
