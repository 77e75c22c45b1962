"""The half of the model spec that joiner, learner and server must agree on: fields and labels.

A field says how one part of an event becomes an input of the model: which raw value, through which
transform, under which number. The number is the lower ten bits of every id that the field makes,
for ever; so a number is given once and never used for another field. What is read here is the
sections `[fields.*]`, `[label]` and `[examples]`; the rest of the file is the learner's.

Events and specs change, each in its own time:

- Producers may add fields whenever they like: what no spec names is not looked at.
- They may leave a field out, or send null: it is absent, which is a value of its own (for a bag no
  items, for a plain number 0.0). A model that is used to the field goes on with that.
- They may change a type: 2, 2.0 and "2" are one value. A scalar where a bag is wanted is a bag of
  one. What the transform can make nothing of (an array where a single value is wanted, a word where
  a number is) is absent. A nested object is a dead letter, whatever it is called.
- `impression_id` and `timestamp_ms` stay what they are.
- A spec whose sections here change makes other examples, so it is another model and needs another
  name; the joiner refuses it under the old one. It joins the same topics beside the old model, from
  the oldest event they still hold, in a group and a topic of its own; neither knows of the other.
- A field that goes keeps its number for ever: rows, models and examples made with it are about it.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, TypeGuard, cast

import numpy as np

from headrace.ingest.events import TIME
from headrace.ingest.features.hashing import NUMBER_ROW, field_id
from headrace.ingest.features.spec_text import SpecError, SpecText, one_of
from headrace.ingest.features.weights import KEYS as WEIGHT_KEYS
from headrace.ingest.features.weights import ExampleWeights, parse_weights

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import numpy.typing as npt

__all__ = [
    "TIME",
    "Field",
    "FieldSet",
    "LabelPolicy",
    "Policy",
    "SpecError",
    "SpecText",
    "Transform",
    "parse_fields",
]

LAST_NUMBER = 1000
"""Numbers of fields and statistics are 1 to this; 0 is the intercept, the rest is reserved."""
NAME = re.compile(r"[a-z0-9_]+")
_LONGEST_S = 366 * 86_400.0


class Transform(StrEnum):
    """How a raw value becomes an input."""

    ID = "id"
    CROSS = "cross"
    LOG_BUCKET = "log_bucket"
    NUMBER = "number"
    BAG = "bag"
    HOUR = "hour"
    PERIOD = "period"
    """Which stretch of time it is. Crossed with a field, its rows count what happened in that time
    alone: clicks of the last minutes, as a statistic of the cross."""

    @property
    def single(self) -> bool:
        """Whether it gives exactly one id for each event, so that rows of it can be counted."""
        return self not in (Transform.NUMBER, Transform.BAG)


class Policy(StrEnum):
    """When an impression becomes an example, and with which label."""

    IMMEDIATE = "immediate"
    """At once with label 0; its click, when it comes, is a second example with label 1."""
    WINDOW = "window"
    """Once, when its window closes, with the label known by then."""


@dataclass(frozen=True, slots=True)
class LabelPolicy:
    """How clicks become labels."""

    policy: Policy = Policy.IMMEDIATE
    """`immediate` by default, since freshness is what headrace is for."""
    window_ms: int = 1_800_000
    """A click later than this after its impression is late: counted, not learned."""


@dataclass(frozen=True, slots=True)
class Field:
    """One field of the spec. What its transform does not use keeps its default."""

    name: str
    number: int
    transform: Transform
    source: str
    """Raw event field; empty for a cross, which has none of its own."""
    of: tuple[str, ...] = ()
    """Names of the fields that a cross combines, in order."""
    per_doubling: float = 1.0
    """Logarithmic buckets for each doubling of 1 + x."""
    utc_offset_h: float = 0.0
    """Hours that local time, of which the hour is taken, is ahead of UTC."""
    period_s: float = 0.0
    """Length of a period."""
    offset_s: float = 0.0
    """When a period begins: two that differ by half of it know of at least half, together."""
    log1p: bool = False
    """Whether a plain number x enters as sign(x) log(1 + |x|)."""


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
    """Of everything here: batches of examples carry it, and who disagrees refuses them."""
    number_ids: npt.NDArray[np.uint64] = field(compare=False)
    """The one row of each plain number, as an id; shape (numbers,)."""
    weights: ExampleWeights = field(default_factory=ExampleWeights)
    """What examples count as, and which are made at all."""

    def __len__(self) -> int:
        return len(self.singles) + len(self.bags) + len(self.numbers)

    def __getitem__(self, name: str) -> Field:
        for each in (*self.singles, *self.bags, *self.numbers):
            if each.name == name:
                return each
        raise KeyError(name)

    @classmethod
    def of(
        cls,
        fields: Iterable[Field],
        label: LabelPolicy,
        slice_by: tuple[str, ...] = (),
        weights: ExampleWeights | None = None,
    ) -> FieldSet:
        """Return the set of `fields`, which are taken to be valid."""
        ordered = sorted(fields, key=lambda each: each.number)
        weights = weights or ExampleWeights()
        plain = tuple(each for each in ordered if each.transform is Transform.NUMBER)
        number_ids = np.array([field_id(NUMBER_ROW, each.number) for each in plain], np.uint64)
        number_ids.flags.writeable = False
        return cls(
            singles=tuple(each for each in ordered if each.transform.single),
            bags=tuple(each for each in ordered if each.transform is Transform.BAG),
            numbers=plain,
            label=label,
            slice_by=slice_by,
            fingerprint=_fingerprint(ordered, label, slice_by, weights),
            number_ids=number_ids,
            weights=weights,
        )


_KEYS: dict[Transform, frozenset[str]] = {
    Transform.ID: frozenset({"source"}),
    Transform.CROSS: frozenset({"of"}),
    Transform.LOG_BUCKET: frozenset({"source", "per_doubling"}),
    Transform.NUMBER: frozenset({"source", "log1p"}),
    Transform.BAG: frozenset({"source"}),
    Transform.HOUR: frozenset({"utc_offset_h"}),
    Transform.PERIOD: frozenset({"period_s", "offset_s"}),
}
_ALWAYS = frozenset({"number", "transform"})


def parse_fields(tables: Mapping[str, object], where: SpecText) -> FieldSet:
    """Return the fields and label policy of a parsed spec.

    Sections other than `[fields.*]`, `[label]` and `[examples]` are not looked at. Raises SpecError
    naming file and line, what was expected and what was found.
    """
    named = _table(tables, where, "fields")
    if not named:
        raise where.error(("fields",), "at least one table [fields.NAME]", "none")
    fields = [_field(_table(named, where, "fields", name), where, name) for name in named]
    _check_numbers(fields, where)
    _check_crosses({each.name: each for each in fields}, where)
    examples = _table(tables, where, "examples")
    _only(examples, ("slice_by", *WEIGHT_KEYS), where, "examples")
    slice_by, weights = _slice_by(examples, where), parse_weights(examples, where)
    return FieldSet.of(fields, _label(tables, where), slice_by, weights)


def _field(table: Mapping[str, object], where: SpecText, name: str) -> Field:
    if not NAME.fullmatch(name):
        raise where.error(("fields", name), "a field name of a-z, 0-9 and _", f'"{name}"')
    found = table.get("transform")
    if not isinstance(found, str) or found not in tuple(Transform):
        expected = one_of((str(each) for each in Transform), str(found))
        raise where.error(("fields", name, "transform"), f"transform {expected}", _shown(found))
    transform = Transform(found)
    _only(table, _ALWAYS | _KEYS[transform], where, "fields", name)
    number = table.get("number")
    if type(number) is not int or not 1 <= number <= LAST_NUMBER:
        raise where.error(
            ("fields", name, "number"), f"number from 1 to {LAST_NUMBER}", _shown(number)
        )
    of_time = dict.fromkeys((Transform.HOUR, Transform.PERIOD), TIME)
    default = {Transform.CROSS: "", **of_time}.get(transform, name)
    source = table.get("source", default)
    if not isinstance(source, str) or (not source and transform is not Transform.CROSS):
        raise where.error(
            ("fields", name, "source"), "source naming a raw event field", _shown(source)
        )
    log1p = table.get("log1p", False)
    if not isinstance(log1p, bool):
        raise where.error(("fields", name, "log1p"), "log1p true or false", _shown(log1p))
    return Field(
        name=name,
        number=number,
        transform=transform,
        source=source,
        of=_parts(table, where, name) if transform is Transform.CROSS else (),
        per_doubling=_real(table, where, name, "per_doubling", 1.0, (0.01, 1000.0)),
        utc_offset_h=_real(table, where, name, "utc_offset_h", 0.0, (-14.0, 14.0)),
        period_s=_period_s(table, where, name) if transform is Transform.PERIOD else 0.0,
        offset_s=_real(table, where, name, "offset_s", 0.0, (0.0, _LONGEST_S)),
        log1p=log1p,
    )


def _period_s(table: Mapping[str, object], where: SpecText, name: str) -> float:
    if "period_s" not in table:
        raise where.error(("fields", name), "period_s, the length of a period", "none")
    return _real(table, where, name, "period_s", 0.0, (1.0, _LONGEST_S))


def _parts(table: Mapping[str, object], where: SpecText, name: str) -> tuple[str, ...]:
    parts = table.get("of")
    if not _names(parts) or len(parts) < 2:
        raise where.error(
            ("fields", name, "of"), "of listing two or more names of fields", _shown(parts)
        )
    return tuple(parts)


def _real(
    table: Mapping[str, object],
    where: SpecText,
    name: str,
    key: str,
    default: float,
    bounds: tuple[float, float],
) -> float:
    found = table.get(key, default)
    least, most = bounds
    if type(found) not in (int, float) or not least <= cast("float", found) <= most:
        raise where.error(("fields", name, key), f"{key} from {least:g} to {most:g}", _shown(found))
    return float(cast("float", found))


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


def _check_crosses(fields: dict[str, Field], where: SpecText) -> None:
    single = [each.name for each in fields.values() if each.transform.single]
    for each in fields.values():
        for part in each.of:
            if part not in single:
                what = "a bag or number" if part in fields else "no such field"
                raise where.error(
                    ("fields", each.name, "of"),
                    f"single-valued fields, {one_of(single, part)}",
                    f'"{part}", {what}',
                )
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


def _label(tables: Mapping[str, object], where: SpecText) -> LabelPolicy:
    table = _table(tables, where, "label")
    _only(table, {"policy", "window_s"}, where, "label")
    policy = table.get("policy", Policy.IMMEDIATE.value)
    if not isinstance(policy, str) or policy not in tuple(Policy):
        expected = one_of((str(each) for each in Policy), str(policy))
        raise where.error(("label", "policy"), f"policy {expected}", _shown(policy))
    window_s = table.get("window_s", 1800)
    if type(window_s) not in (int, float) or not 0 < cast("float", window_s) <= 7 * 86_400:
        raise where.error(("label", "window_s"), "window_s above 0, up to a week", _shown(window_s))
    return LabelPolicy(Policy(policy), max(1, math.floor(cast("float", window_s) * 1000)))


def _slice_by(table: Mapping[str, object], where: SpecText) -> tuple[str, ...]:
    names = table.get("slice_by", [])
    if not _names(names) or len(set(names)) != len(names):
        raise where.error(
            ("examples", "slice_by"), "slice_by listing raw event fields, each once", _shown(names)
        )
    return tuple(names)


def _names(found: object) -> TypeGuard[list[str]]:
    return isinstance(found, list) and all(isinstance(each, str) and each for each in found)


def _table(tables: Mapping[str, object], where: SpecText, *keys: str) -> Mapping[str, object]:
    found = tables.get(keys[-1], {})
    if not isinstance(found, dict):
        raise where.error(keys, f"a table [{'.'.join(keys)}]", _shown(found))
    return found


def _only(table: Mapping[str, object], known: Iterable[str], where: SpecText, *keys: str) -> None:
    known = tuple(known)
    for key in table:
        if key not in known:
            expected = f"in [{'.'.join(keys)}] {one_of(known, key)}"
            raise where.error((*keys, key), expected, f'"{key}"')


def _shown(found: object) -> str:
    return "nothing" if found is None else json.dumps(found, default=str)


def _fingerprint(
    fields: list[Field], label: LabelPolicy, slice_by: tuple[str, ...], weights: ExampleWeights
) -> str:
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
                    # specs of before this transform keep the fingerprint they had
                    **({"period": [each.period_s, each.offset_s]} if each.period_s else {}),
                }
                for each in fields
            ],
            "label": {"policy": label.policy.value, "window_ms": label.window_ms},
            "examples": {"slice_by": slice_by} | weights.agreed(),
        },
        sort_keys=True,
        separators=(",", ":"),
    )
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]
