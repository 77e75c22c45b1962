"""The declared fields whose values events and requests carry.

A model does not read every field from an event: crosses combine other fields, histories come from
rows, and hours and periods from the time. For the others, `headrace check`, the joiner and the
server report the *coverage*: the share of events or candidates that have a usable value.
"""

from typing import NamedTuple

from headrace.ingest.events.contract import REQUEST_ID, TIME
from headrace.ingest.features.fields import FieldSet, Transform

LEAST_ALIKE = 0.7
"""Likeness of two names, from 0 to 1, from which one may be the other misspelt."""

_WITHOUT_VALUE = (Transform.HOUR, Transform.PERIOD, Transform.CROSS, Transform.HISTORY)


class CarriedField(NamedTuple):
    """A declared field that is read from one raw field."""

    name: str
    """As declared. Raw fields of other sections have the section behind the name."""
    source: str
    """The raw field."""
    transform: Transform


def input_fields(fields: FieldSet) -> tuple[CarriedField, ...]:
    """Return the fields that a request needs: inputs of the model."""
    return tuple(
        CarriedField(each.name, each.source, each.transform)
        for each in (*fields.singles, *fields.bags, *fields.numbers)
        if each.transform not in _WITHOUT_VALUE and each.source != TIME
    )


def carried_fields(fields: FieldSet) -> tuple[CarriedField, ...]:
    """Return the fields that an impression needs: also those to slice by, and the weight."""
    inputs = input_fields(fields)
    known = {each.source for each in inputs} | {REQUEST_ID}
    slices = [
        CarriedField(f"{source} (slice_by)", source, Transform.ID)
        for source in fields.slice_by
        if source not in known
    ]
    weight = fields.weights.source
    weights = [CarriedField(f"{weight} (weight)", weight, Transform.NUMBER)] if weight else []
    return (*inputs, *slices, *weights)
