"""The fields, labels and examples of a spec; tests.learner.spec has the recorded refusals."""

import numpy as np
import pytest

from headrace.ingest.features.fields import LAST_NUMBER, FieldSet, LabelPolicy, Policy, parse_fields
from headrace.ingest.features.hashing import field_ids
from headrace.ingest.features.number_ids import NUMBER_ROW, number_id
from headrace.ingest.features.spec_text import SpecError, SpecText

GOOD = """
[label]
policy = "window"
window_s = 600

[examples]
slice_by = ["device_type"]

[fields.item]
number = 7
transform = "id"
source = "article_id"

[fields.user]
number = 2
transform = "id"

[fields.pair]
number = 3
transform = "cross"
of = ["user", "item"]

[fields.triple]
number = 4
transform = "cross"
of = ["pair", "clock"]

[fields.clock]
number = 5
transform = "hour"
utc_offset_h = 5.5

[fields.tags]
number = 6
transform = "bag"

[fields.price]
number = 1
transform = "number"
log1p = true
"""


def parse(text: str) -> FieldSet:
    where = SpecText("model.toml", text)
    return parse_fields(where.tables(), where)


def refusal(text: str) -> str:
    with pytest.raises(SpecError) as caught:
        parse(text)
    return str(caught.value)


def test_fields_of_a_kind_are_in_the_order_of_their_numbers() -> None:
    fields = parse(GOOD)
    assert [each.name for each in fields.singles] == ["user", "pair", "triple", "clock", "item"]
    assert [each.name for each in fields.bags] == ["tags"]
    assert [each.name for each in fields.numbers] == ["price"]
    assert fields.number_ids.tolist() == [number_id(1)]
    assert fields["item"].source == "article_id"
    assert fields["user"].source == "user"
    assert fields["clock"].source == "timestamp_ms"
    assert fields.label == LabelPolicy(Policy.WINDOW, 600.0)
    assert fields.slice_by == ("device_type",)
    assert len(fields) == 7


def test_the_default_label_policy_is_immediate_with_half_an_hour() -> None:
    fields = parse('[fields.user]\nnumber = 1\ntransform = "id"\n')
    assert fields.label == LabelPolicy(Policy.IMMEDIATE, 1800.0)
    assert fields.slice_by == ()


def test_a_wait_is_refused_with_the_policy_window_or_beyond_the_window() -> None:
    said = refusal(GOOD.replace("window_s = 600", "window_s = 600\nwait_s = 2"))
    assert "expected no wait_s with the policy window" in said
    said = refusal(GOOD.replace('policy = "window"', "wait_s = 601"))
    assert "expected wait_s of at most window_s, 600, found 601" in said


SAME = [
    "# a comment\n" + GOOD,
    GOOD + "[optimizer]\nalpha = 1\n",
    GOOD.replace("window_s = 600", "window_s = 600\nwait_s = 0.0"),
    GOOD.replace('[fields.user]\nnumber = 2\ntransform = "id"', "")
    + '[fields.user]\nsource = "user"\ntransform = "id"\nnumber = 2\n',
]
CHANGED = [
    GOOD.replace('transform = "bag"', 'transform = "id"'),
    GOOD.replace("number = 7", "number = 8"),
    GOOD.replace("log1p = true", "log1p = false"),
    GOOD.replace("window_s = 600", "window_s = 60"),
    GOOD.replace('["device_type"]', "[]"),
    GOOD.replace('policy = "window"', ""),
    GOOD.replace('policy = "window"', "wait_s = 2"),
    GOOD.replace('policy = "window"', "wait_s = 0.5"),
    GOOD + '[fields.more]\nnumber = 9\ntransform = "id"\n',
]


def test_the_fingerprint_changes_exactly_when_the_examples_would() -> None:
    [fingerprint] = {parse(text).fingerprint for text in (GOOD, *SAME)}
    assert len(fingerprint) == 16
    assert len({fingerprint, *(parse(text).fingerprint for text in CHANGED)}) == 1 + len(CHANGED)


def test_a_spec_without_fields_is_refused() -> None:
    assert "at least one table [fields.NAME]" in refusal("[label]\n")
    assert "expected a table [fields.user]" in refusal("[fields]\nuser = 3\n")


def test_the_line_of_a_key_is_the_first_line_of_its_statement() -> None:
    where = SpecText("m", 'a = """\n[b]\n"""\n\n# c = 1\n[b]\nc = [\n 1,\n]\n"d e".f = 2\n')
    assert where.line_of("a") == 1
    assert where.line_of("b") == 6
    assert where.line_of("b", "c") == 7
    assert where.line_of("b", "d e", "f") == 10
    assert where.line_of("b", "missing") == 6
    assert where.line_of("missing") == 1


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("", r"t\.toml:1: expected period_s from 1 to .*, found nothing"),
        ("period_s = 0", r"t\.toml:4: expected period_s from 1 to"),
        ("period_s = 60\nof = 3", r"t\.toml:5: .*of"),
    ],
)
def test_a_period_needs_a_valid_length(more: str, said: str) -> None:
    text = f'[fields.now]\nnumber = 1\ntransform = "period"\n{more}'
    where = SpecText("t.toml", text)
    with pytest.raises(SpecError, match=said):
        parse_fields(where.tables(), where)


def test_the_plain_id_of_a_number_equals_the_compiled_one() -> None:
    for number in range(LAST_NUMBER + 1):
        assert number_id(number) == field_ids(np.array([NUMBER_ROW], np.uint64), number)[0]
