"""Decides what happens to a message that cannot be decoded: it stops its reader, or is skipped.

A damaged message stays in its topic, so a reader that only failed would fail at every start, until
retention deletes the message. An operator can name it, and the reader skips it. *Refused:* skipping
every damaged message. A topic of another program would be skipped whole, and a disk that damages
messages would go unnoticed.
"""

import logging
from collections.abc import Callable, Collection
from typing import TypeVar

from headrace.ingest.errors import DamagedMessage
from headrace.ingest.examples.arrow_batch import UnreadableBatch
from headrace.ingest.examples.batch import DamagedExamples
from headrace.ingest.kafka.protocols import Record

log = logging.getLogger(__name__)

Content = TypeVar("Content")


class DamagedMessages:
    """Decodes messages, and skips the damaged ones that an operator named."""

    def __init__(self, named: Collection[str] = ()) -> None:
        """named: messages to skip if they are damaged, each as TOPIC/PARTITION@OFFSET."""
        self._named = frozenset(named)
        self._skipped: set[str] = set()

    @property
    def skipped(self) -> int:
        """Messages skipped; one that was read again counts once."""
        return len(self._skipped)

    def decoded(self, record: Record, decode: Callable[[bytes], Content]) -> Content | None:
        """Return the content of a message; None if it is damaged and may be skipped.

        Raises DamagedMessage, and what else `decode` raises.
        """
        try:
            return decode(record.value)
        except (DamagedExamples, UnreadableBatch) as error:
            if record.place not in self._named:
                raise DamagedMessage(record.place, error) from error
            log.warning("skips the damaged message %s: %s", record.place, error)
            self._skipped.add(record.place)
            return None
