"""docs/guides/models.md is true: its keys, defaults and bounds are those of the parsers.

The tests provoke errors: a parser that rejects a key names the keys and bounds that it accepts.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

import headrace.deploy
from headrace.ingest.features.spec_text import SpecError
from headrace.learner.models.deep.contract import NetworkBatch, NetworkShape
from headrace.learner.models.factory import open_model
from headrace.learner.spec.model_spec import parse_spec
from headrace.learner.spec.optimizer_spec import Optimizer, floats
from tests.docs.pages import DOCS, blocks, command_of, commands

PAGE = (DOCS / "guides/models.md").read_text()
SPECS = blocks(PAGE, "toml")

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
            "module": {"module": '"own:Net"', "history": '"tags"', "target": '"item"'},
        },
    ),
    Kinds(
        "fields.NAME",
        "fields.new",
        "transform",
        {"number": "9"},
        {"cross": {"of": '["item", "item"]'}, "period": {"period_s": "60"}},
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
    assert head[:4] == ["key", "type", "default", "bounds"]
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
    if each.heading == "calibration":  # two kinds of the same keys need no table
        assert set(takes) <= set(quoted(part_under(each.heading)))
        assert len(set(map(frozenset, takes.values()))) == 1
        return
    [head, *rows] = tables_under(each.heading)[1]
    common = set(quoted(head[1])) | {"embeddings", "dense"}
    assert {row[0].strip("`"): set(quoted(row[1])) for row in rows} == {
        kind: keys - common for kind, keys in takes.items()
    }
    assert head[0] in (each.selector, "optimizer")


@pytest.mark.parametrize(("heading", "key"), keys_said())
def test_bounds_are_those_that_the_parser_names(heading: str, key: str) -> None:
    bounds = said_of(heading)[key]["bounds"]
    with_key = [each for each in variants(heading).values() if key in known(heading, each)]
    for keys in with_key:
        told = refusal(text_of(heading, {**keys, key: "{ zzz = 1 }"}))
        assert bounds in told
        assert bounds or not re.search(r"\d to \S|true or false", told), told


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


def test_floats_are_what_optimizers_take() -> None:
    [_, *rows] = tables_under("optimizer")[1]
    for name, _, weight, vector, _ in rows:
        each, more = re.fullmatch(r"(\d ?)?d(?: \+ (\d))?", vector).groups()  # type: ignore[union-attr]
        optimizer = Optimizer(name.strip("`"))
        assert int(weight) == floats(optimizer, 1)
        assert int(each or 1) * 8 + int(more or 0) == floats(optimizer, 8)
    news = parse_spec(
        (Path(headrace.deploy.__file__).parent / "models/news_deepfm.toml").read_text(), "m"
    )
    assert f"3 + 2 · 8 = {news.width} of `news_deepfm.toml`" in PAGE


def test_every_field_of_form_and_batch_is_documented() -> None:
    own = PAGE.partition("## Your own torch module")[2]
    first_cells = set(quoted(" ".join(re.findall(r"^\| (`.*?) \|", own, re.MULTILINE))))
    assert set(NetworkShape._fields) | set(NetworkBatch._fields) <= first_cells


@pytest.mark.parametrize("text", SPECS)
def test_a_spec_of_the_page_is_one(text: str) -> None:
    parse_spec(text, "models.md")


def test_there_is_a_spec_of_every_architecture_and_of_every_section() -> None:
    specs = [parse_spec(text, "models.md") for text in SPECS]
    assert {each.architecture for each in specs} == set(variants("model"))
    assert any(each.structure.synchronous for each in specs)
    assert any(each.fields.weights.source for each in specs)
    assert any(each.fields.weights.sampling for each in specs)
    assert any(each.calibration for each in specs)
    assert any(each.admission for each in specs)


@pytest.mark.parametrize("text", SPECS)
def test_a_spec_of_the_page_opens_as_a_model(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch", reason="deep models are an extra: pip install headrace[deep]")
    [source] = blocks(PAGE, "python")
    (tmp_path / "own.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    try:
        open_model(parse_spec(text, "models.md"), buckets=4)
    finally:
        sys.modules.pop("own", None)


@pytest.mark.parametrize("line", commands(PAGE))
def test_a_command_of_the_page_is_one_of_headrace(line: str) -> None:
    options, words = command_of(line)
    assert {word for word in words if word.startswith("--")} <= options
