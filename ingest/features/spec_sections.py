"""Sections of the model spec as msgspec structs: their keys, bounds, kinds and refusals.

A section is one struct: a key is an attribute with type, default, bounds and a docstring. The
parser, the JSON Schema and docs/reference/spec.md are all made from it. Where a key such as
`transform` or `kind` selects among several kinds, `Variants` says which keys each kind takes and
derives a tagged struct for it that forbids all others. *Refused:* a class for each kind, because
code that reads a spec would then need a case for each of them; it reads one flat struct instead.

msgspec checks a table and stops at the first error. Its message gives a path but no line, so a
refusal is written here: file, line, the expected value and the value found.
"""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Generic, NamedTuple, TypeVar

import msgspec
from msgspec.inspect import BoolType, EnumType, FloatType, IntType, Metadata, type_info

from headrace.ingest.features.spec_text import SpecError, SpecText, one_of

Table = Mapping[str, object]

S = TypeVar("S", bound=msgspec.Struct)


def expected(phrase: str) -> msgspec.Meta:
    """Return an annotation with the end of the sentence "expected KEY ..." in a refusal.

    Keys without it get a sentence made from type and bounds.
    """
    return msgspec.Meta(extra={"expected": phrase})


UNIQUE = msgspec.Meta(extra_json_schema={"uniqueItems": True})
"""Marks a list of different items, for the schema; msgspec does not check it."""


class Variant(NamedTuple):
    """One kind of a section."""

    meaning: str
    takes: tuple[str, ...] = ()
    """Keys that may be omitted."""
    needs: tuple[str, ...] = ()
    """Keys that must be given."""
    defaults: Mapping[str, object] = {}
    """Defaults that differ from those of the section."""
    types: Mapping[str, object] = {}
    """Types of keys that differ from those of the section."""


class Variants(Generic[S]):
    """A section of several kinds, which one of its keys, the tag, selects."""

    def __init__(
        self,
        section: type[S],
        tag: str,
        kinds: Mapping[str, Variant],
        *,
        always: tuple[str, ...] = (),
        usual: str = "",
        otherwise: str = "",
    ) -> None:
        """Derive a struct for each kind.

        always: keys that every kind needs. usual: the kind where the tag is omitted, if it may be.
        otherwise: the end of a refusal that names the kinds.
        """
        self.section, self.tag, self.kinds, self.usual = section, tag, kinds, usual
        self.always, self._otherwise = always, otherwise
        known = {each.encode_name: each for each in msgspec.structs.fields(section)}
        self._attribute = known[tag].name
        self._tags = {each: each for each in kinds}  # text -> the member of its enum, if it has one
        self.structs = {name: self._variant(name, known) for name in kinds}

    def read(
        self, table: Table, where: SpecText, *keys: str, also: Iterable[str] = (), **given: object
    ) -> S:
        """Return the section in the table at `keys`. Raises SpecError.

        also: further keys of the table, which are read elsewhere. given: attributes that the table
        does not hold, such as the name of a field.
        """
        tag = table.get(self.tag, self.usual)
        if not isinstance(tag, str) or tag not in self._tags:
            if self.tag not in table:
                self._check_keys(table, where, keys, also)
            wanted = f"{self.tag} {one_of(self.kinds, str(tag))}{self._otherwise}"
            raise where.error((*keys, self.tag), wanted, shown(table.get(self.tag)))
        values = msgspec.structs.asdict(
            read_section(self.structs[tag], table, where, *keys, also=also)
        )
        given[self._attribute] = self._tags[tag]
        return self.section(**{**self.kinds[tag].defaults, **values, **given})

    def _check_keys(
        self, table: Table, where: SpecText, keys: tuple[str, ...], also: Iterable[str]
    ) -> None:
        """Raise SpecError for a key that no kind takes: the tag may be misspelt."""
        known = {self.tag, *self.always, *also}
        for kind in self.kinds.values():
            known.update(kind.takes, kind.needs)
        _check_known(known, table, where, keys)

    def _variant(
        self, name: str, known: Mapping[str, msgspec.structs.FieldInfo]
    ) -> type[msgspec.Struct]:
        kind = self.kinds[name]
        needs = (*self.always, *kind.needs)
        defaults = {each: known[each].default for each in kind.takes} | dict(kind.defaults)
        types = {each: known[each].type for each in (*needs, *kind.takes)} | dict(kind.types)
        fields = [(each, types[each], defaults[each]) for each in kind.takes]
        return msgspec.defstruct(
            f"{self.section.__name__}_{name}",
            [*((each, types[each]) for each in needs), *fields],
            namespace={"__doc__": kind.meaning},
            tag=str(name),
            tag_field=self.tag,
            forbid_unknown_fields=True,
            kw_only=True,
        )


def read_section(
    section: type[S], table: Table, where: SpecText, *keys: str, also: Iterable[str] = ()
) -> S:
    """Return the section in the table at `keys`. Raises SpecError. also: as in `Variants.read`."""
    also = frozenset(also)
    try:
        return msgspec.convert({k: v for k, v in table.items() if k not in also}, section)
    except msgspec.ValidationError as error:
        raise _refusal(str(error), section, table, where, keys, also) from None


def table_of(tables: Table, where: SpecText, *keys: str) -> Table:
    """Return the table under the last of `keys`, empty if it is missing. Raises SpecError."""
    found = tables.get(keys[-1], {})
    if not isinstance(found, dict):
        raise where.error(keys, f"a table [{'.'.join(keys)}]", shown(found))
    return found


def tables_of(tables: Table, where: SpecText, section: str) -> dict[str, Table]:
    """Return the tables [SECTION.NAME] by name. Raises SpecError."""
    named = table_of(tables, where, section)
    return {name: table_of(named, where, section, name) for name in named}


def shown(found: object) -> str:
    """Return a value roughly as TOML has it, for a message."""
    return "nothing" if found is None else json.dumps(found, default=str)


def bounds_of(kind: object) -> str:
    """Return the bounds of a number, of true or false or of an enum as text, "" for others."""
    if isinstance(kind, FloatType):
        return f"{kind.ge:g} to {kind.le:g}"
    if isinstance(kind, IntType):
        return f"{kind.ge} to {kind.le}"
    return "true or false" if isinstance(kind, BoolType) else ""


def _refusal(
    message: str,
    section: type[msgspec.Struct],
    table: Table,
    where: SpecText,
    keys: tuple[str, ...],
    also: frozenset[str],
) -> SpecError:
    """Return the error that names the key which msgspec's message is about."""
    fields = {each.encode_name: each for each in type_info(section).fields}  # type: ignore[attr-defined]
    tag = section.__struct_config__.tag_field
    known = {*fields, *also, *([tag] if tag else [])}
    try:
        _check_known(known, table, where, keys)
    except SpecError as error:
        return error
    # "... - at `$.layers[1]`" or "... required field `of`"
    [(name, found)] = [
        (each, table.get(each)) for each in re.findall(r"`(?:\$\.)?(\w+)[^`]*`$", message)
    ]
    return where.error((*keys, name), _expected(fields[name], found), shown(found))


def _check_known(known: set[str], table: Table, where: SpecText, keys: tuple[str, ...]) -> None:
    """Raise SpecError for the first key of the table that is not known."""
    for name in table:
        if name not in known:
            wanted = f"a key of [{'.'.join(keys)}], {one_of(known, name)}"
            raise where.error((*keys, name), wanted, f'"{name}"')


def _expected(field: msgspec.inspect.Field, found: object) -> str:
    name, kind, phrase = field.encode_name, field.type, ""
    if isinstance(kind, Metadata):
        phrase, kind = (kind.extra or {}).get("expected", ""), kind.type
    if phrase:
        return f"{name} {phrase}"
    if isinstance(kind, EnumType):
        return f"{name} {one_of((str(each.value) for each in kind.cls), str(found))}"
    if isinstance(kind, FloatType):
        return f"{name} from {bounds_of(kind)}"
    article = "a whole number from " if isinstance(kind, IntType) else ""
    return f"{name}, {article}{bounds_of(kind)}"
