"""The sections `[admission]` and `[expiry]`: which ids get a row, and which rows are deleted.

The two kinds of admission are those of McMahan et al., "Ad Click Prediction: a View from the
Trenches", KDD 2013, section 4.1: Bloom filter inclusion and Poisson inclusion. An id without a row
is learned in the rare row of its field (learner.inputs.rare_rows). Learners, servers and keepers
must agree on both sections, so they are part of the spec's fingerprint.
"""

import json
from collections.abc import Mapping
from typing import Annotated

from msgspec import Meta, Struct, structs

from headrace.ingest.features.fields import FieldSet, Transform
from headrace.ingest.features.spec_sections import (
    UNIQUE,
    Variant,
    Variants,
    expected,
    read_section,
    shown,
)
from headrace.ingest.features.spec_text import SpecText, one_of
from headrace.pserver.keeper.expiry import Expiry

COUNT, PROBABILITY = "count", "probability"
DAY_S = 86_400
_FIELDS = "= a list of names of fields, each once"
_EARNABLE = (Transform.ID, Transform.CROSS, Transform.BAG)
"""Fields of other transforms have few ids, and numbers have one."""


class Admission(Struct, frozen=True):
    """The section `[admission]`. Keys that the kind does not take keep their default."""

    kind: str
    """The rule by which an id gets its row."""
    fields: Annotated[tuple[str, ...], Meta(min_length=1), UNIQUE, expected(_FIELDS)] = ()
    """Fields to which admission applies, of transform `id`, `cross` or `bag`. By default all of
    these."""
    # counters of the filter count to 255
    sightings: Annotated[int, Meta(ge=2, le=250)] = 0
    """The sighting at which an id gets its row."""
    filter_mb: Annotated[int, Meta(ge=1, le=4096)] = 64
    """MiB of counters in each learner. With the defaults, a remembered id takes 26 bytes. 64 MiB
    suffice for about 3 million ids at a time."""
    hashes: Annotated[int, Meta(ge=1, le=8)] = 4
    """Counters per id. 8 would take a sixth less memory, at twice the work."""
    false_rate: Annotated[float, Meta(ge=1e-6, le=0.5)] = 0.01
    """Largest share of sightings that may be counted too high. The filter forgets old sightings
    before it exceeds this share."""
    probability: Annotated[float, Meta(ge=1e-6, le=1.0)] = 0.0
    """Chance of a row at each sighting of an id without one."""


ADMISSION = Variants(
    Admission,
    "kind",
    {
        COUNT: Variant(
            "A row after this many sightings.",
            ("fields", "filter_mb", "hashes", "false_rate"),
            ("sightings",),
        ),
        PROBABILITY: Variant("A row with this probability.", ("fields",), ("probability",)),
    },
)


class ExpirySection(Struct, frozen=True, forbid_unknown_fields=True):
    """The section `[expiry]`. At least one of its keys is given."""

    after_days: Annotated[float, Meta(ge=1e-4, le=36_500.0)] = 0.0
    """Days of event time after which an unseen row is deleted. At least the label's window."""
    most_rows: Annotated[int, Meta(ge=1, le=10**12)] = 0
    """Largest number of rows of the whole model. Above it, keepers delete the least recently seen
    rows."""


def parse_admission(table: Mapping[str, object], fields: FieldSet, where: SpecText) -> Admission:
    """Return the section. Raises SpecError."""
    found = ADMISSION.read(table, where, "admission")
    every = sorted((*fields.singles, *fields.bags), key=lambda each: each.number)
    known = [each.name for each in every if each.transform in _EARNABLE]
    keys = ("admission", "fields")
    if not known:
        wanted = "a field of transform id, cross or bag to admit ids of"
        raise where.error(keys[:1], wanted, "nothing")
    if "fields" not in table:
        return structs.replace(found, fields=tuple(known))
    if len(set(found.fields)) != len(found.fields):
        raise where.error(keys, f"fields {_FIELDS}", shown(found.fields))
    for name in found.fields:
        if name not in known:
            wanted = f"fields of transform id, cross or bag, {one_of(known, name)}"
            raise where.error(keys, wanted, json.dumps(name))
    return structs.replace(found, fields=tuple(name for name in known if name in found.fields))


def parse_expiry(table: Mapping[str, object], window_ms: int, where: SpecText) -> Expiry:
    """Return the section; a click may come as late as `window_ms`. Raises SpecError."""
    found = read_section(ExpirySection, table, where, "expiry")
    if not table:
        raise where.error(("expiry",), "after_days or most_rows in [expiry]", "neither")
    after_s = round(found.after_days * DAY_S)
    if "after_days" in table and after_s * 1000 < window_ms:
        raise where.error(
            ("expiry", "after_days"),
            f"after_days of at least {window_ms / 1000 / DAY_S:.4g}, the label's window, so that "
            "a click finds the row of its impression",
            shown(table["after_days"]),
        )
    return Expiry(after_s, found.most_rows)
