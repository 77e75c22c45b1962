"""How far a model may grow, as its spec says: which ids get a row, and when rows go.

    [admission]                   # no section: every id gets a row when it is first seen
    kind = "count"                # a row when the id has been seen so many times
    sightings = 3
    filter_mb = 64                # of counters, in each learner (learner.inputs.admission)
    hashes = 4                    # counters an id
    false_rate = 0.01             # of sightings that may be counted too high, at most
    fields = ["user", "tags"]     # whose ids have to earn a row; default: all of id, cross and bag

    [admission]
    kind = "probability"          # a row with this probability, each time an id without is seen
    probability = 0.1

    [expiry]                      # no section: rows live for ever
    after_days = 30.0             # rows not seen for so long in event time are deleted
    most_rows = 50_000_000        # of the whole model; beyond it the longest unseen are deleted

The two kinds are those of McMahan et al., "Ad Click Prediction: a View from the Trenches", KDD
2013, section 4.1: Bloom filter inclusion and Poisson inclusion. An id that has no row counts in the
rare row of its field (learner.inputs.rare_rows). What is said here has to agree between learners,
servers and keepers, so it is part of the spec's fingerprint.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.ingest.features import Transform, one_of
from headrace.learner.spec.tables import only, real, shown, whole
from headrace.pserver.keeper import Expiry

if TYPE_CHECKING:
    from headrace.ingest.features import FieldSet, SpecText
    from headrace.learner.spec.tables import Table

COUNT, PROBABILITY = "count", "probability"
MOST_SIGHTINGS = 250
"""Counters of the filter hold 255."""
DAY_S = 86_400

_KEYS = {
    COUNT: ("kind", "fields", "sightings", "filter_mb", "hashes", "false_rate"),
    PROBABILITY: ("kind", "fields", "probability"),
}
_GUARDABLE = (Transform.ID, Transform.CROSS, Transform.BAG)
"""Fields of the other transforms have few ids, and numbers have no other."""


@dataclass(frozen=True, slots=True)
class Admission:
    """Which ids get a row of their own. What the kind does not use keeps its default."""

    kind: str
    fields: tuple[str, ...]
    """Names of the fields whose ids have to earn their row, in the order of their numbers."""
    sightings: int = 0
    """count: the sighting at which an id gets its row."""
    filter_mb: int = 64
    """count: MiB of counters in each learner: room for some 3 million ids at a time."""
    hashes: int = 4
    """count: counters an id; 8 would take a sixth less memory, at twice the work."""
    false_rate: float = 0.01
    """count: the filter forgets before more sightings than this would be counted too high."""
    probability: float = 0.0
    """probability: of a row, each time an id without one is seen."""


def parse_admission(table: Table, fields: FieldSet, where: SpecText) -> Admission:
    """Return what the section says. Raises SpecError."""
    keys = ("admission",)
    kind = table.get("kind")
    if not isinstance(kind, str) or kind not in _KEYS:
        raise where.error((*keys, "kind"), f"kind {one_of(_KEYS, str(kind))}", shown(kind))
    only(table, _KEYS[kind], where, *keys)
    guarded = _guarded(table, fields, where)
    if kind == PROBABILITY:
        probability = real(table, where, keys, "probability", None, (1e-6, 1.0))
        return Admission(kind, guarded, probability=probability)
    default = Admission(kind, guarded)
    return Admission(
        kind,
        guarded,
        whole(table, where, keys, "sightings", None, (2, MOST_SIGHTINGS)),
        whole(table, where, keys, "filter_mb", default.filter_mb, (1, 4096)),
        whole(table, where, keys, "hashes", default.hashes, (1, 8)),
        real(table, where, keys, "false_rate", default.false_rate, (1e-6, 0.5)),
    )


def _guarded(table: Table, fields: FieldSet, where: SpecText) -> tuple[str, ...]:
    every = (*fields.singles, *fields.bags)
    guardable = sorted(
        (each for each in every if each.transform in _GUARDABLE), key=lambda each: each.number
    )
    known = [each.name for each in guardable]
    keys = ("admission", "fields")
    if not known:
        raise where.error(keys[:1], "a field of transform id, cross or bag to admit ids of", "none")
    if "fields" not in table:
        return tuple(known)
    found = table["fields"]
    if not isinstance(found, list) or not found or len(set(map(str, found))) != len(found):
        raise where.error(keys, "fields listing names of fields, each once", shown(found))
    for name in found:
        if name not in known:
            expected = f"fields of transform id, cross or bag, {one_of(known, str(name))}"
            raise where.error(keys, expected, json.dumps(name, default=str))
    return tuple(name for name in known if name in found)


def parse_expiry(table: Table, window_ms: int, where: SpecText) -> Expiry:
    """Return what the section says, given how late a click may come. Raises SpecError."""
    keys = ("expiry",)
    only(table, ("after_days", "most_rows"), where, *keys)
    if not table:
        raise where.error(keys, "after_days or most_rows in [expiry]", "neither")
    after_s = most_rows = 0
    if "after_days" in table:
        after_days = real(table, where, keys, "after_days", None, (1e-4, 36_500.0))
        after_s = round(after_days * DAY_S)
        if after_s * 1000 < window_ms:
            raise where.error(
                (*keys, "after_days"),
                f"after_days of {window_ms / 1000 / DAY_S:.4g} at least, the label's window: "
                "a click is to find the row of its impression",
                shown(table["after_days"]),
            )
    if "most_rows" in table:
        most_rows = whole(table, where, keys, "most_rows", None, (1, 10**12))
    return Expiry(after_s, most_rows)
