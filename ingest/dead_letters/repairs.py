"""How a person says what a dead letter's event should have been: an edited file, or a function.

The file is what `dead-letters show --json` printed, one letter a line, with `event` put right;
`"event": null` gives the event up, and a line taken out leaves its letter open. Every line is
checked before anything is sent.

The function stands in a small Python file:

    def repair(event, letter):
        event["timestamp_ms"] *= 1000  # they sent seconds
        return event

`event` is None where the message was no JSON object; `letter` has the reason, the origin, the key,
and the message as text. What it returns is sent; None leaves the letter open.
"""

from __future__ import annotations

import runpy
from typing import TYPE_CHECKING, Any

import msgspec
import orjson

from headrace.ingest.dead_letters.letter import Letter, Origin
from headrace.ingest.dead_letters.letter_retry import DISCARD, Repair, why_refused
from headrace.ingest.errors import StreamError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path


class BadRepair(StreamError):
    """A file of repairs cannot be used; the message names the line."""


class EditableLetter(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A letter as `show --json` prints it, to be edited."""

    topic: str
    partition: int
    offset: int
    append_ms: int
    reason: str = ""
    key: str | None = None
    value: str | None = None
    """The message, where it is no JSON object; not read back."""
    value_base64: str | None = None
    event: dict[str, Any] | msgspec.UnsetType | None = msgspec.UNSET

    @property
    def origin(self) -> Origin:
        """Where the event lay."""
        return Origin(self.topic, self.partition, self.offset, self.append_ms)


def as_line(letter: Letter) -> bytes:
    """Return a letter as a line to edit, without the line's end."""
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
        """Origins without an open letter, once all letters were seen: settled before, or wrong."""

    def repair(self, letter: Letter) -> Repair:
        """Return what the file says of a letter; nothing leaves it open."""
        self.unused.discard(letter.origin)
        return self._repairs.get(letter.origin)

    def _take(self, line: bytes, where: str) -> None:
        try:
            shown = _decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise BadRepair(
                f"{where}: expected a line of `dead-letters show --json`, found: {error}"
            ) from error
        if shown.event is msgspec.UNSET:
            raise BadRepair(
                f"{where}: expected `event`, the repaired object, or null to give it up; found none"
            )
        if shown.origin in self._repairs:
            raise BadRepair(f"{where}: expected each letter once, found {shown.origin} again")
        if shown.event is None:
            self._repairs[shown.origin] = DISCARD
            return
        reason = why_refused(shown.event)
        if reason is not None:
            raise BadRepair(f"{where}: the joiner would refuse it again: {reason.value}")
        self._repairs[shown.origin] = shown.event


class FunctionRepairs:
    """Repairs by the function `repair` of a Python file. Raises BadRepair."""

    def __init__(self, path: Path) -> None:
        self._name = str(path)
        try:
            found = runpy.run_path(self._name).get("repair")
        except (OSError, SyntaxError) as error:
            raise BadRepair(f"expected a Python file, found: {error}") from error
        if not callable(found):
            raise BadRepair(f"{path}: expected a function repair(event, letter), found none")
        self._function: Callable[[dict[str, Any] | None, Letter], object] = found

    def repair(self, letter: Letter) -> Repair:
        """Return what the function makes of a letter."""
        try:
            repaired = self._function(letter.event, letter)
            if isinstance(repaired, dict):
                orjson.dumps(repaired)
        except Exception as error:
            raise BadRepair(
                f"{self._name}: repair failed for {letter.origin}: {type(error).__name__}: {error}"
            ) from error
        if repaired is None or isinstance(repaired, dict):
            return repaired
        raise BadRepair(
            f"{self._name}: expected repair to return an object or None for {letter.origin}, "
            f"found {type(repaired).__name__}"
        )


_decode = msgspec.json.Decoder(EditableLetter).decode
