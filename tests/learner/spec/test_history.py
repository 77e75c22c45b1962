"""A spec declares a history (a bag field) and its target (a single-valued field), or neither."""

import pytest

from headrace.ingest.features.spec_text import SpecError
from headrace.learner.spec.model_spec import parse_spec

DIN = """\
[model]
name = "m"
architecture = "din"
history = "recent"
target = "item"

[fields.item]
number = 1
transform = "id"

[fields.recent]
number = 2
transform = "bag"
"""
MODULE = DIN.replace('"din"', '"module"\nmodule = "some.where:Model"')
BOTH = 'history = "recent"\ntarget = "item"\n'


@pytest.mark.parametrize(
    ("old", "new", "line", "expected", "found"),
    [
        (
            'history = "recent"',
            'history = ""',
            4,
            "history = the name of a field of transform bag or history",
            '""',
        ),
        (
            BOTH,
            'history = ""\ntarget = ""\n',
            4,
            "a field of transform bag or history, one of recent",
            '""',
        ),
        (BOTH, "", 1, "history = the name of a field of transform bag or history", "nothing"),
        (
            'history = "recent"',
            "",
            1,
            "history = the name of a field of transform bag or history",
            "nothing",
        ),
        (
            'history = "recent"',
            "history = 3",
            4,
            "history = the name of a field of transform bag or history",
            "3",
        ),
        ('"recent"', '"recnt"', 4, 'did you mean "recent"?', '"recnt"'),
        (
            '"recent"',
            '"item"',
            4,
            "history = the name of a field of transform bag or history",
            '"item"',
        ),
        (
            '"bag"',
            '"id"',
            4,
            "a field of transform bag or history, but the spec has none",
            '"recent"',
        ),
        ('target = "item"', "", 1, "target = the name of a single-valued field", "nothing"),
        ('target = "item"', 'target = ""', 5, "a single-valued field, one of item", '""'),
        ('target = "item"', 'target = "recent"', 5, "a single-valued field", '"recent"'),
        ('"id"', '"bag"', 5, "a single-valued field, but the spec has none", '"item"'),
    ],
)
@pytest.mark.parametrize("architecture", ["din", "sequence"])
def test_a_history_is_a_bag_and_its_target_a_single_valued_field(
    architecture: str, old: str, new: str, line: int, expected: str, found: str
) -> None:
    written = DIN.replace("din", architecture)
    parse_spec(written, "m.toml")
    with pytest.raises(SpecError) as refused:
        parse_spec(written.replace(old, new, 1), "m.toml")
    message = str(refused.value)
    assert message.startswith(f"m.toml:{line}: expected "), message
    assert expected in message
    assert f", found {found}" in message


@pytest.mark.parametrize("written", ["", 'history = ""\n', 'history = ""\ntarget = ""\n'])
def test_a_user_module_needs_no_history_and_no_target(written: str) -> None:
    structure = parse_spec(MODULE.replace(BOTH, written), "m.toml").structure
    assert (structure.history, structure.target) == ("", "")


@pytest.mark.parametrize("written", ["", 'history = ""\n'])
def test_a_target_without_a_history_is_refused(written: str) -> None:
    line = 5 + len(written.splitlines())
    expected = rf"m\.toml:{line}: expected no target without a history, .*, found .item.$"
    with pytest.raises(SpecError, match=expected):
        parse_spec(MODULE.replace('history = "recent"\n', written), "m.toml")


def test_a_user_module_with_history_and_target_is_validated_like_din() -> None:
    assert parse_spec(MODULE, "m.toml").structure.target == "item"
    with pytest.raises(
        SpecError, match=r"m\.toml:6: expected target = the name of a single-valued field"
    ):
        parse_spec(MODULE.replace('target = "item"', 'target = "no"'), "m.toml")


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ('encoder = "lstm"', 'encoder gru or attention, found "lstm"'),
        ("encoder_layers = 0", "encoder_layers, a whole number from 1 to 8, found 0"),
        ("history_length = 1001", "history_length, a whole number from 1 to 1000, found 1001"),
        ("cross_layers = 2", ".*cross_layers"),
    ],
)
def test_an_invalid_key_of_a_sequence_network_is_refused_with_its_line(
    written: str, expected: str
) -> None:
    text = DIN.replace("din", "sequence").replace(BOTH, f"{written}\n{BOTH}")
    with pytest.raises(SpecError, match=rf"m\.toml:4: expected .*{expected}"):
        parse_spec(text, "m.toml")


def test_din_takes_no_keys_of_an_encoder() -> None:
    with pytest.raises(SpecError, match=r"m\.toml:4: .*encoder"):
        parse_spec(DIN.replace(BOTH, f'encoder = "gru"\n{BOTH}'), "m.toml")
