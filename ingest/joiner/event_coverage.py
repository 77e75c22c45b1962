"""The coverage of each declared field in the impressions that a joiner reads.

A field that producers do not send, or send under another name, is absent in every example. Nothing
fails: the model only becomes worse. So the joiner counts, exports the counts as metrics, and warns
once about each field that no recent impression has.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from headrace.ingest.decoding.json_scanner import ABSENT, TEXT
from headrace.ingest.features.field_sources import CarriedField, carried_fields
from headrace.ingest.features.fields import FieldSet, Transform
from headrace.ingest.features.recent_coverage import CoverageCounts, RecentCoverage
from headrace.runtime.counted_nouns import counted

if TYPE_CHECKING:
    from headrace.ingest.decoding.decoder import Decoded

log = logging.getLogger(__name__)

LEAST_IMPRESSIONS = 500
"""Recent impressions from which a field without values is worth a warning."""


class EventCoverage:
    """Counts the usable values of each declared field. Repeated impressions count again."""

    def __init__(self, fields: FieldSet, now_ms: Callable[[], int]) -> None:
        self.fields = carried_fields(fields)
        self._counts = RecentCoverage([each.name for each in self.fields], now_ms)
        self._warned: set[str] = set()
        self._unchecked = 0

    def count(self, decoded: Decoded, good: npt.NDArray[np.bool_]) -> None:
        """Count the impressions of a chunk. good: (n,) those that are not refused, and no ticks."""
        usable = [int(np.count_nonzero(good & _usable(each, decoded))) for each in self.fields]
        total = int(np.count_nonzero(good))
        self._counts.add(total, usable)
        self._unchecked += total
        if self._unchecked >= LEAST_IMPRESSIONS:
            self._unchecked = 0
            self._warn()

    def recent(self) -> CoverageCounts:
        """Return the counts of the last ten minutes."""
        return self._counts.recent()

    def _warn(self) -> None:
        found = self._counts.recent()
        if found.total < LEAST_IMPRESSIONS:
            return
        for each in self.fields:
            if not found.usable[each.name] and each.name not in self._warned:
                self._warned.add(each.name)
                log.warning(
                    "field %s: expected usable values of %r, got none in the last %s. Set its "
                    "source in the spec, or rename it in the events",
                    each.name,
                    each.source,
                    counted(found.total, "impression"),
                )


def _usable(each: CarriedField, decoded: Decoded) -> npt.NDArray[np.bool_]:
    """Return which messages have a value that the transform can use; shape (n,)."""
    if each.transform in (Transform.NUMBER, Transform.LOG_BUCKET):
        return ~np.isnan(decoded.reals(each.source))
    kinds = decoded.found.kinds[decoded.places[each.source]]
    usable: npt.NDArray[np.bool_] = (
        kinds != ABSENT if each.transform is Transform.BAG else kinds == TEXT
    )
    return usable
