"""docs/reference/spec.md is true: its keys, defaults and expected values are those of the parsers.

The page is generated from the structs that parse a spec. These tests ask the parsers instead: a
refusal names the keys and values that a parser accepts.
"""

import re
from typing import NamedTuple

import pytest

from headrace.ingest.features.spec_text import SpecError
from headrace.learner.spec.model_spec import parse_spec
from tests.docs.pages import DOCS

PAGE = (DOCS / "reference/spec.md").read_text()

Tables = dict[str, dict[str, str]]
"""Section -> key -> value, as TOML has it."""

BASE: Tables = {
    "model": {"name": '"m"'},
    "fields.item": {"number": "1", "transform": '"id"'},
    "fields.tags": {"number": "2", "transform": '"bag"'},
    "statistics.rate": {"number": "3", "statistic": '"rate"', "of": '"item"'},
}


class Kinds(NamedTuple):
    """A section that is of one of several kinds."""

    heading: str
    section: str
    selector: str
    """The key that says which."""
    always: dict[str, str]
    needs: dict[str, dict[str, str]]
    """Kind -> the keys that it does not go without."""


KINDS = [
    Kinds(
        "model",
        "model",
        "architecture",
        {"name": '"m"'},
        {
            "din": {"history": '"tags"', "target": '"item"'},
            "sequence": {"history": '"tags"', "target": '"item"'},
            "module": {"module": '"own:Net"', "history": '"tags"', "target": '"item"'},
        },
    ),
    Kinds(
        "fields.NAME",
        "fields.new",
        "transform",
        {"number": "9"},
        {
            "cross": {"of": '["item", "item"]'},
            "history": {"of": '"item"', "item": '"item"', "last": "20"},
            "period": {"period_s": "60"},
        },
    ),
    Kinds(
        "statistics.NAME",
        "statistics.new",
        "statistic",
        {"number": "9"},
        {
            **{kind: {"of": '"item"'} for kind in ("age", "click", "rate", "show")},
            "cross": {"cross": '["rate", "item"]'},
        },
    ),
    Kinds("optimizer", "optimizer", "name", {}, {}),
    Kinds(
        "admission",
        "admission",
        "kind",
        {},
        {"count": {"sightings": "2"}, "probability": {"probability": "0.5"}},
    ),
    Kinds("calibration", "calibration", "kind", {}, {}),
]
PLAIN = {"label": {}, "examples": {}, "expiry": {"after_days": "1"}}
HEADINGS = [each.heading for each in KINDS] + list(PLAIN)


def text_of(heading: str, keys: dict[str, str]) -> str:
    """A spec whose section has these keys, and no others."""
    section = {each.heading: each.section for each in KINDS}.get(heading, heading)
    tables = BASE | {section: keys}
    if heading == "optimizer":
        tables = tables | {"model": {"name": '"m"', "architecture": '"deepfm"'}}
    lines = [
        "\n".join([f"[{name}]", *(f"{key} = {value}" for key, value in table.items())])
        for name, table in tables.items()
    ]
    return "\n".join(lines)


def refusal(text: str) -> str:
    """The part of a parser's message that says what it expected."""
    with pytest.raises(SpecError, match=r"expected .*, found") as refused:
        parse_spec(text, "m.toml")
    return str(refused.value).partition("expected ")[2].rpartition(", found ")[0]


def listed(text: str) -> set[str]:
    """The names that a parser accepts."""
    return set(re.sub(r" \(.*\)", "", refusal(text).partition("one of ")[2]).split(", "))


def kinds_of(each: Kinds) -> list[str]:
    """The kinds that the parser knows, by name."""
    found = listed(text_of(each.heading, {**each.always, each.selector: '"zzz"'}))
    return sorted(found | ({"cross"} if each.heading == "statistics.NAME" else set()))


def variants(heading: str) -> dict[str, dict[str, str]]:
    """Kind -> the keys of the shortest section of that kind."""
    if heading in PLAIN:
        return {"": PLAIN[heading]}
    [each] = [each for each in KINDS if each.heading == heading]
    chosen = {kind: {each.selector: f'"{kind}"'} for kind in kinds_of(each)}
    if heading == "statistics.NAME":
        chosen["cross"] = {}
    return {
        kind: {**each.always, **said, **each.needs.get(kind, {})} for kind, said in chosen.items()
    }


def known(heading: str, keys: dict[str, str]) -> set[str]:
    return listed(text_of(heading, {**keys, "zzz": "1"}))


def part_under(heading: str) -> str:
    [text] = re.findall(rf"^## `\[{heading}\]`\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    return str(text)


def tables_under(heading: str) -> list[list[list[str]]]:
    """The cells of the tables under a heading; the first row of each says what they are."""
    found = re.findall(r"(?:^\|.*\n)+", part_under(heading), re.MULTILINE)
    cells = [
        [
            [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
            for line in rows.splitlines()
        ]
        for rows in found
    ]
    return [[rows[0], *rows[2:]] for rows in cells]


def said_of(heading: str) -> dict[str, dict[str, str]]:
    """Key -> what the page says of it, by column."""
    [head, *rows] = tables_under(heading)[0]
    assert head[:4] == ["key", "type", "default", "expected"]
    return {row[0].strip("`"): dict(zip(head, row, strict=True)) for row in rows}


def keys_said() -> list[tuple[str, str]]:
    return [(heading, key) for heading in HEADINGS for key in said_of(heading)]


def quoted(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_every_section_has_its_heading() -> None:
    sections = listed("[zzz]\n" + text_of("label", {}))
    headings = re.findall(r"^## `\[(.*)\]`$", PAGE, re.MULTILINE)
    assert sorted(HEADINGS) == sorted(headings)
    assert {each.partition(".")[0] for each in headings} == sections


@pytest.mark.parametrize("heading", HEADINGS)
def test_the_keys_of_a_section_are_those_that_its_parser_knows(heading: str) -> None:
    everything = set[str]().union(*(known(heading, each) for each in variants(heading).values()))
    assert set(said_of(heading)) == everything


def test_groups_of_parameters_take_the_keys_of_the_optimizer() -> None:
    for name, keys in variants("optimizer").items():
        ours = known("optimizer", keys)
        assert {"embeddings", "dense"} < ours
        for group in ("embeddings", "dense"):
            text = text_of("optimizer", {}) + f'\n[optimizer.{group}]\nname = "{name}"\nzzz = 1'
            assert listed(text) == ours - {"embeddings", "dense"}


@pytest.mark.parametrize("each", KINDS, ids=lambda each: each.heading)
def test_each_kind_has_a_row_with_the_keys_that_it_alone_takes(each: Kinds) -> None:
    takes = {kind: known(each.heading, keys) for kind, keys in variants(each.heading).items()}
    [head, *rows] = tables_under(each.heading)[1]
    common = set(quoted(head[1])) | {"embeddings", "dense"}
    assert {row[0].strip("`"): set(quoted(row[1])) for row in rows} == {
        kind: keys - common for kind, keys in takes.items()
    }
    assert head[0] == each.selector


@pytest.mark.parametrize(("heading", "key"), keys_said())
def test_the_expected_value_is_that_of_the_refusal(heading: str, key: str) -> None:
    expected = said_of(heading)[key]["expected"]
    with_key = [each for each in variants(heading).values() if key in known(heading, each)]
    for keys in with_key:
        told = refusal(text_of(heading, {**keys, key: "{ zzz = 1 }"}))
        assert any(each in told for each in re.split("; for `.*`: ", expected))
        assert expected or heading == "optimizer", told


@pytest.mark.parametrize(("heading", "key"), keys_said())
def test_a_default_that_is_written_out_changes_nothing(heading: str, key: str) -> None:
    default = said_of(heading)[key]["default"]
    with_key = [each for each in variants(heading).values() if key in known(heading, each)]
    literals = [each for each in quoted(default) if re.match(r"[\d\"\[{]|true|false", each)]
    if [heading, key] in [[each.heading, each.selector] for each in KINDS] and literals:
        with_key = [each for each in with_key if each[key] == literals[0]]
    assert with_key
    for place, keys in enumerate(with_key):
        without = {name: value for name, value in keys.items() if name != key}
        if literals:
            written = {**without, key: literals[min(place, len(literals) - 1)]}
            here, there = (text_of(heading, each) for each in (without, written))
            assert parse_spec(here, "m").fingerprint == parse_spec(there, "m").fingerprint
        elif default.startswith("required"):
            assert key in keys
            if (heading, key) != ("model", "target"):  # a history beside it wants it
                refusal(text_of(heading, without))
        elif key not in keys:
            parse_spec(text_of(heading, keys), "m")
