"""The part of the model spec that joiner, learner and server share: fields, labels and examples.

A field turns one part of an event into an input of the model: a raw value, a transform and a
number. The number is the lower ten bits of every id that the field makes, so a number is assigned
once and never reused for another field. This module reads the sections `[fields.*]`, `[label]` and
`[examples]`; learner.spec reads the others.

Events and specs change independently:

- Producers may add fields at any time. A field that no spec names is ignored.
- They may omit a field or send null. It is then absent, which is a value of its own (no items for
  a bag, 0.0 for a plain number). A model that uses the field continues with that.
- They may change a type: 2, 2.0 and "2" are one value. A scalar in place of a bag is a bag of one.
  A value that the transform cannot use (an array in place of a single value, a word in place of a
  number) is absent. An event with a nested object goes to the dead letters, whatever its key.
- `impression_id` and `timestamp_ms` keep their meaning.
- A spec whose sections here change makes other examples, so it is another model and needs another
  name; the joiner refuses it under the old one. It joins the same topics beside the old model,
  from the oldest event they still hold, in a group and a topic of its own. The two models are
  independent.
- A removed field keeps its number for ever: rows, models and examples were made with it.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Meta

from headrace.ingest.events.contract import TIME
from headrace.ingest.features.example_weights import ExampleWeights
from headrace.ingest.features.number_ids import number_id
from headrace.ingest.features.spec_sections import (
    UNIQUE,
    Variant,
    Variants,
    expected,
    read_section,
    table_of,
    tables_of,
)
from headrace.ingest.features.spec_text import SpecText, found_name, one_of

LAST_NUMBER = 1000
"""Fields and statistics have numbers from 1 to this one; 0 is the intercept, higher ones are
reserved."""
NAME = re.compile(r"[a-z0-9_]+")
_LONGEST_S = 366 * 86_400.0
_WEEK_S = 7 * 86_400
_SLICE_BY = "= a list of raw event fields, each once"

Number = Annotated[int, Meta(ge=1, le=LAST_NUMBER)]
RawField = Annotated[str, Meta(min_length=1)]


SUM, MEAN, SQRT = "sum", "mean", "sqrt"


class Transform(StrEnum):
    """The way from a raw value to an input."""

    ID = "id"
    CROSS = "cross"
    LOG_BUCKET = "log_bucket"
    NUMBER = "number"
    BAG = "bag"
    HISTORY = "history"
    """The items that a user clicked last. They come from rows, not from the event."""
    HOUR = "hour"
    PERIOD = "period"
    """The number of a time span. Crossed with a field, its rows count the events of that span
    alone: clicks of the last minutes, as a statistic of the cross."""

    @property
    def single(self) -> bool:
        """Whether it gives exactly one id per event, so that the rows of it can be counted."""
        return self is not Transform.NUMBER and not self.listed

    @property
    def listed(self) -> bool:
        """Whether it gives any number of ids per event."""
        return self in (Transform.BAG, Transform.HISTORY)


class Policy(StrEnum):
    """When an impression becomes an example, and with which label.

    When an impression is shown, its click is not known yet. `immediate` brings new items into the
    model within a second; `window` gives every example its final label, one window late. The joiner
    applies the policy (`ingest/joiner/core/rules.py`). A click after the window is late under both.
    """

    IMMEDIATE = "immediate"
    """At once, or after `wait_s`, with label 0; a later click is a second example with label 1."""
    WINDOW = "window"
    """Once, when its window closes, with the label known by then."""


class LabelPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The section `[label]`: how clicks become labels."""

    # immediate by default, because headrace exists for freshness
    policy: Policy = Policy.IMMEDIATE
    """When an impression becomes an example."""
    window_s: Annotated[float, Meta(gt=0, le=_WEEK_S), expected("above 0, up to a week")] = 1800.0
    """Seconds after the impression in which a click counts. A later click is late: it is counted
    and not learned."""
    wait_s: Annotated[float, Meta(ge=0, le=_WEEK_S), expected("from 0 to window_s")] = 0.0
    """With the policy `immediate`: seconds after the impression until it becomes an example. If its
    click comes before, it is one example with label 1."""

    @property
    def window_ms(self) -> int:
        """The window in milliseconds, at least one."""
        return max(1, math.floor(self.window_s * 1000))

    @property
    def wait_ms(self) -> int:
        """The wait in milliseconds; 0 under `window`."""
        return math.floor(self.wait_s * 1000)

    @property
    def delay_ms(self) -> int:
        """Event time from an impression to its example."""
        return self.window_ms if self.policy is Policy.WINDOW else self.wait_ms

    @property
    def behind_ms(self) -> int:
        """By how much the event time of an example is behind the watermark that makes it.

        Under `window`, an example has the time of its impression. With a wait, it has the time at
        which the wait ends, so that examples are in the order of the clicks between them.
        """
        return self.window_ms if self.policy is Policy.WINDOW else 0


class ExampleOptions(ExampleWeights, frozen=True, forbid_unknown_fields=True):
    """The section `[examples]`."""

    slice_by: Annotated[tuple[RawField, ...], UNIQUE, expected(_SLICE_BY)] = ()
    """Raw fields that examples keep, so that evaluation reports accuracy by their values."""


class Field(msgspec.Struct, frozen=True):
    """One field of the spec. Keys that its transform does not take keep their default."""

    name: str
    number: Number
    """Unique number of this field. Ids contain it, so never reuse it."""
    transform: Transform
    """The rule that turns the raw value into an input."""
    source: Annotated[RawField, expected("= the name of a raw event field")] = ""
    """Raw field of the event. By default the name of the field."""
    of: Annotated[
        tuple[RawField, ...],
        Meta(min_length=2),
        expected("= a list of two or more names of fields"),
    ] = ()
    """Fields that a cross combines, in this order; they may be crosses themselves. For a history:
    the single-valued field that names the user."""
    item: Annotated[RawField, expected("= the name of a single-valued field")] = ""
    """The single-valued field whose clicked values are the items of a history."""
    per_doubling: Annotated[float, Meta(ge=0.01, le=1e3)] = 1.0
    """Buckets per doubling of 1 + |x|."""
    utc_offset_h: Annotated[float, Meta(ge=-14.0, le=14.0)] = 0.0
    """Hours that local time is ahead of UTC."""
    period_s: Annotated[float, Meta(ge=1.0, le=_LONGEST_S)] = 0.0
    """Length of a period in seconds, at most 366 days."""
    offset_s: Annotated[float, Meta(ge=0.0, le=_LONGEST_S)] = 0.0
    """Start of a period, in seconds. If two fields differ by half a period, one of them always
    covers at least the last half period."""
    log1p: bool = False
    """Whether a number x enters as sign(x) log(1 + |x|)."""
    pooling: Annotated[str, Meta(pattern=r"^(sum|mean|sqrt)\Z"), expected("sum, mean or sqrt")] = (
        SUM
    )
    """Weight of n items: 1 each (`sum`), 1/n (`mean`) or 1/sqrt(n) (`sqrt`)."""
    last: Annotated[int, Meta(ge=1, le=100_000)] = 0
    """Number of the last items that count. By default all items of a bag count."""
    decay: Annotated[float, Meta(ge=1e-6, le=1.0)] = 1.0
    """Weight of an item relative to the next one, for arrays with the newest item last."""
    learned_weights: bool = False
    """Whether the learner also learns how much each item counts in its bag. Needs `pooling`
    `mean` or `sqrt`."""

    @property
    def weighted(self) -> bool:
        """Whether items of the bag have weights other than 1."""
        return self.pooling != SUM or self.decay != 1.0 or self.learned_weights


FIELDS = Variants(
    Field,
    "transform",
    {
        Transform.ID: Variant("A row per value. Absent is a value of its own.", ("source",)),
        Transform.CROSS: Variant(
            "A row per combination of values of single-valued fields. Each part may be absent.",
            needs=("of",),
        ),
        Transform.LOG_BUCKET: Variant(
            "A row per bucket of a number. Absent is a value of its own.",
            ("source", "per_doubling"),
        ),
        Transform.NUMBER: Variant(
            "One row, whose weight and vector are multiplied by the number. Absent is 0.",
            ("source", "log1p"),
        ),
        Transform.BAG: Variant(
            "A row per item of an array. A repeated item counts twice. Absent has no items.",
            ("source", "pooling", "last", "decay", "learned_weights"),
        ),
        Transform.HISTORY: Variant(
            "A row per item that the user clicked last. The learner keeps these items in rows, so "
            "events do not contain them. Without a user, the history is empty.",
            ("pooling", "decay", "learned_weights"),
            needs=("of", "item", "last"),
            types={
                "of": Annotated[RawField, expected("= the name of a single-valued field")],
                "last": Annotated[int, Meta(ge=1, le=200)],
            },
        ),
        Transform.HOUR: Variant("The hour of `timestamp_ms`, 0 to 23.", ("utc_offset_h",)),
        Transform.PERIOD: Variant(
            "A row per time span. Statistics of a cross with it describe the last minutes.",
            ("offset_s",),
            needs=("period_s",),
        ),
    },
    always=("number",),
)
"""The sections `[fields.NAME]`."""


@dataclass(frozen=True, slots=True)
class FieldSet:
    """All fields of a model, each kind in ascending order of number, and the label policy."""

    singles: tuple[Field, ...]
    bags: tuple[Field, ...]
    numbers: tuple[Field, ...]
    label: LabelPolicy
    slice_by: tuple[str, ...]
    """Raw event fields that examples keep, so that evaluation can slice by them."""
    fingerprint: str
    """Digest of everything here. Batches of examples carry it; a process with another one refuses
    them."""
    number_ids: npt.NDArray[np.uint64] = field(compare=False)
    """The id of the one row of each plain number; shape (numbers,)."""
    weights: ExampleWeights = field(default_factory=ExampleWeights)
    """The weights of examples, and which negatives are kept."""

    def __len__(self) -> int:
        return len(self.singles) + len(self.bags) + len(self.numbers)

    @property
    def learns_item_weights(self) -> bool:
        """Whether a bag learns how much each of its items counts."""
        return any(each.learned_weights for each in self.bags)

    def __getitem__(self, name: str) -> Field:
        for each in (*self.singles, *self.bags, *self.numbers):
            if each.name == name:
                return each
        raise KeyError(name)

    @classmethod
    def of(cls, fields: Iterable[Field], label: LabelPolicy, examples: ExampleOptions) -> FieldSet:
        """Return the set of `fields`, which must be valid."""
        ordered = sorted(fields, key=lambda each: each.number)
        plain = tuple(each for each in ordered if each.transform is Transform.NUMBER)
        number_ids = np.array([number_id(each.number) for each in plain], np.uint64)
        number_ids.flags.writeable = False
        return cls(
            singles=tuple(each for each in ordered if each.transform.single),
            bags=tuple(each for each in ordered if each.transform.listed),
            numbers=plain,
            label=label,
            slice_by=examples.slice_by,
            fingerprint=_fingerprint(ordered, label, examples),
            number_ids=number_ids,
            weights=examples,
        )


def parse_fields(tables: Mapping[str, object], where: SpecText) -> FieldSet:
    """Return the fields, label policy and example options of a parsed spec.

    Other sections are ignored. Raises SpecError naming file and line, the expected value and the
    value found.
    """
    named = tables_of(tables, where, "fields")
    if not named:
        raise where.error(("fields",), "at least one table [fields.NAME]", "nothing")
    fields = [_field(table, where, name) for name, table in named.items()]
    _check_numbers(fields, where)
    _check_crosses({each.name: each for each in fields}, where)
    examples = read_section(ExampleOptions, table_of(tables, where, "examples"), where, "examples")
    if len(set(examples.slice_by)) != len(examples.slice_by):
        found = json.dumps(examples.slice_by)
        raise where.error(("examples", "slice_by"), f"slice_by {_SLICE_BY}", found)
    label = read_section(LabelPolicy, table_of(tables, where, "label"), where, "label")
    _check_wait(label, where)
    return FieldSet.of(fields, label, examples)


def _check_wait(label: LabelPolicy, where: SpecText) -> None:
    if label.wait_s and label.policy is Policy.WINDOW:
        wanted, found = "no wait_s with the policy window, which waits for window_s", label.wait_s
        raise where.error(("label", "wait_s"), wanted, f"{found:g}")
    if label.wait_s > label.window_s:
        wanted = f"wait_s of at most window_s, {label.window_s:g}"
        raise where.error(("label", "wait_s"), wanted, f"{label.wait_s:g}")


def _field(table: Mapping[str, object], where: SpecText, name: str) -> Field:
    if not NAME.fullmatch(name):
        raise where.error(("fields", name), "a field name of a-z, 0-9 and _", f'"{name}"')
    found = FIELDS.read(table, where, "fields", name, name=name)
    if found.learned_weights and found.pooling == SUM:
        wanted = "pooling mean or sqrt beside learned_weights, which have no scale of their own"
        raise where.error(("fields", name, "learned_weights"), wanted, f'pooling "{SUM}"')
    of: object = found.of  # of a history: one name, as its kind has it
    if isinstance(of, str):
        found = msgspec.structs.replace(found, of=(of,))
    of_time = found.transform in (Transform.HOUR, Transform.PERIOD)
    source = found.source or (TIME if of_time else "" if found.of else name)
    return msgspec.structs.replace(found, source=source)


def _check_numbers(fields: list[Field], where: SpecText) -> None:
    owner: dict[int, str] = {}
    for each in fields:
        if each.number in owner:
            raise where.error(
                ("fields", each.name, "number"),
                "a number that no other field has",
                f'{each.number}, the number of "{owner[each.number]}"',
            )
        owner[each.number] = each.name


def kinds_of(fields: Iterable[Field]) -> dict[str, str]:
    """Return the kind of each field by its name, for errors that show a name found in a spec."""
    return {each.name: f"a field of transform {each.transform}" for each in fields}


def _check_crosses(fields: dict[str, Field], where: SpecText) -> None:
    single = [each.name for each in fields.values() if each.transform.single]
    kinds = kinds_of(fields.values())
    for each in fields.values():
        parts = [("of", part) for part in each.of]
        for key, part in parts + [("item", each.item)] * bool(each.item):
            if part not in single:
                others = one_of((name for name in single if name != each.name), part)
                wanted = f"a single-valued field in `{key}`, {others}"
                raise where.error(("fields", each.name, key), wanted, found_name(part, kinds))
    for each in fields.values():
        if each.name in _reachable(fields, each.of):
            raise where.error(
                ("fields", each.name, "of"), "a cross of other fields", "one that contains itself"
            )


def _reachable(fields: dict[str, Field], parts: tuple[str, ...]) -> set[str]:
    seen: set[str] = set()
    to_visit = list(parts)
    while to_visit:
        name = to_visit.pop()
        if name not in seen:
            seen.add(name)
            to_visit.extend(fields[name].of)
    return seen


def _fingerprint(fields: list[Field], label: LabelPolicy, examples: ExampleOptions) -> str:
    """Return a digest. Its text must never change: batches of examples carry the digest."""
    canonical = json.dumps(
        {
            "fields": [
                {
                    "name": each.name,
                    "number": each.number,
                    "transform": each.transform.value,
                    "source": each.source,
                    "of": each.of,
                    "per_doubling": each.per_doubling,
                    "utc_offset_h": each.utc_offset_h,
                    "log1p": each.log1p,
                    # only periods: specs older than this transform keep their fingerprint
                    **({"period": [each.period_s, each.offset_s]} if each.period_s else {}),
                    # likewise
                    **({"items": [each.pooling, each.decay]} if each.weighted else {}),
                    **({"last": each.last} if each.last else {}),
                    **({"item": each.item} if each.item else {}),
                    **({"learned_weights": True} if each.learned_weights else {}),
                }
                for each in fields
            ],
            "label": {
                "policy": label.policy.value,
                "window_ms": label.window_ms,
                **({"wait_ms": label.wait_ms} if label.wait_ms else {}),
            },
            "examples": {"slice_by": examples.slice_by} | examples.agreed(),
        },
        sort_keys=True,
        separators=(",", ":"),
    )
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]
