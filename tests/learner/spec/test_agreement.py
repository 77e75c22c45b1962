"""A process whose spec differs from the store's refuses to start and shows the difference."""

from dataclasses import replace
from typing import Any

import pytest

from headrace.learner.spec.compatibility import check_compatible, check_copy
from headrace.learner.spec.model_spec import parse_spec
from headrace.pserver.errors import WrongModel
from headrace.pserver.store import Shape

SPEC = """\
[model]
name = "news"
architecture = "logistic_regression"

[fields.article]
number = 1
transform = "id"

[optimizer]
name = "ftrl"
alpha = 0.05
"""


def shape() -> Shape:
    spec = parse_spec(SPEC, "news.toml")
    return Shape(spec.name, 4, spec.width, spec.fingerprint, spec.text)


def test_the_same_spec_agrees_and_so_does_one_with_another_comment() -> None:
    check_compatible(parse_spec(SPEC, "news.toml"), shape())
    check_compatible(parse_spec("# as in 2026\n" + SPEC, "elsewhere.toml"), shape())


@pytest.mark.parametrize(
    ("change", "of_store", "words"),
    [
        (("0.05", "0.1"), {}, r"(?s)fingerprint .*\n-alpha = 0.05\n\+alpha = 0.1"),
        (("news", "sport"), {}, 'expected model "sport".*found "news"'),
        (("", ""), {"fingerprint": "0" * 16}, "another version of headrace"),
        (("", ""), {"width": 18}, "rows of 2 floats, found 18"),
    ],
    ids=["other constants", "another name", "another version", "another width"],
)
def test_a_store_of_another_model_is_refused_with_the_difference(
    change: tuple[str, str], of_store: dict[str, Any], words: str
) -> None:
    spec = parse_spec(SPEC.replace(*change), "news.toml")
    with pytest.raises(WrongModel, match=words):
        check_compatible(spec, replace(shape(), **of_store))


DEEP = """\
[model]
name = "news"
architecture = "deepfm"
dimensions = 4
seed = 1
layers = [8, 4]

[fields.article]
number = 1
transform = "id"

[optimizer.embeddings]
name = "ftrl"
alpha = 0.1

[optimizer.dense]
name = "adagrad"
alpha = 0.02
"""


@pytest.mark.parametrize(
    ("text", "before", "after", "section"),
    [
        (SPEC, "number = 1", "number = 2", "[fields], [label] or [examples]"),
        (SPEC, "alpha = 0.05", "alpha = 0.1", "[optimizer]"),
        (
            *(SPEC, "[optimizer]"),
            '[statistics.rate]\nnumber = 9\nstatistic = "rate"\nof = "article"\n\n[optimizer]',
            "[statistics]",
        ),
        (DEEP, '"deepfm"', '"wide_and_deep"', "[model]"),
        (DEEP, "dimensions = 4", "dimensions = 8", "[model]"),
        (DEEP, "seed = 1", "seed = 2", "[model]"),  # initial vectors and layers are not stored
        (DEEP, "seed = 1", "seed = 1\ninit_scale = 0.1", "[model]"),
        (DEEP, "layers = [8, 4]", "layers = [8, 8]", "[model]"),
        (DEEP, "alpha = 0.1", "alpha = 0.2", "[optimizer]"),
        (DEEP, "alpha = 0.02", "alpha = 0.01", "[optimizer]"),
    ],
)
def test_a_copy_under_another_name_may_differ_in_nothing_that_is_learned(
    text: str, before: str, after: str, section: str
) -> None:
    original, renamed = parse_spec(text, "news.toml"), text.replace('"news"', '"copy"')
    assert before in renamed
    with pytest.raises(WrongModel) as refused:
        check_copy(parse_spec(renamed.replace(before, after), "copy.toml"), original, "snapshot x")
    first, *lines = str(refused.value).splitlines()
    assert first.endswith(f"differ in {section}:")
    assert "--- snapshot x" in lines
    added = [line.removeprefix("+") for line in lines if line.startswith("+")]
    assert set(after.splitlines()) & set(added) or any(after in line for line in added)


@pytest.mark.parametrize(
    ("text", "before", "after"),
    [
        (SPEC, "[model]", "# a trial\n[model]"),
        (SPEC, "[optimizer]", "[expiry]\nmost_rows = 1000000\n\n[optimizer]"),
        (SPEC, "[optimizer]", '[admission]\nkind = "count"\nsightings = 3\n\n[optimizer]'),
        (DEEP, "seed = 1", "seed = 1\nmini_batch = 7"),
        (DEEP, "seed = 1", "seed = 1\nsynchronous = true"),
    ],
)
def test_a_copy_may_have_other_admission_expiry_and_batches(
    text: str, before: str, after: str
) -> None:
    renamed = text.replace('"news"', '"copy"').replace(before, after)
    check_copy(parse_spec(renamed, "copy.toml"), parse_spec(text, "news.toml"), "snapshot x")
