"""A process whose spec differs from the store's refuses to start and shows the difference."""

from dataclasses import replace

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


def test_another_spec_is_refused_showing_the_lines_that_differ() -> None:
    changed = parse_spec(SPEC.replace("0.05", "0.1"), "news.toml")
    with pytest.raises(WrongModel) as refused:
        check_compatible(changed, shape())
    lines = str(refused.value).splitlines()
    assert "-alpha = 0.05" in lines
    assert "+alpha = 0.1" in lines
    assert changed.fingerprint in lines[0]
    assert shape().fingerprint in lines[0]


def test_a_spec_of_another_name_than_the_stored_model_is_refused() -> None:
    with pytest.raises(WrongModel, match=r'expected model "sport".*found "news"'):
        check_compatible(parse_spec(SPEC.replace("news", "sport"), "sport.toml"), shape())


def test_equal_spec_texts_with_different_fingerprints_are_refused_with_the_reason() -> None:
    spec = parse_spec(SPEC, "news.toml")
    with pytest.raises(WrongModel, match="another version of headrace"):
        check_compatible(spec, replace(shape(), fingerprint="0" * 16))


def test_a_store_with_rows_of_another_width_is_refused() -> None:
    with pytest.raises(WrongModel, match="rows of 2 floats, found 18"):
        check_compatible(parse_spec(SPEC, "news.toml"), replace(shape(), width=18))


@pytest.mark.parametrize(
    ("before", "after", "section"),
    [
        ("number = 1", "number = 2", "[fields], [label] or [examples]"),
        ("alpha = 0.05", "alpha = 0.1", "[optimizer]"),
        (
            "[optimizer]",
            '[statistics.rate]\nnumber = 9\nstatistic = "rate"\nof = "article"\n\n[optimizer]',
            "[statistics]",
        ),
    ],
)
def test_a_copy_under_another_name_may_differ_in_nothing_that_is_learned(
    before: str, after: str, section: str
) -> None:
    original = parse_spec(SPEC, "news.toml")
    renamed = SPEC.replace('"news"', '"copy"')
    check_copy(parse_spec("# a trial\n" + renamed, "copy.toml"), original, "snapshot x")
    with pytest.raises(WrongModel) as refused:
        check_copy(parse_spec(renamed.replace(before, after), "copy.toml"), original, "snapshot x")
    first, *lines = str(refused.value).splitlines()
    assert first.endswith(f"differ in {section}:")
    assert "--- snapshot x" in lines
    assert any(line.startswith("+") and after.splitlines()[0] in line for line in lines)


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
    ("before", "after", "section"),
    [
        ('"deepfm"', '"wide_and_deep"', "[model]"),
        ("dimensions = 4", "dimensions = 8", "[model]"),
        ("seed = 1", "seed = 2", "[model]"),  # what vectors and layers begin with is not stored
        ("seed = 1", "seed = 1\ninit_scale = 0.1", "[model]"),
        ("layers = [8, 4]", "layers = [8, 8]", "[model]"),
        ("alpha = 0.1", "alpha = 0.2", "[optimizer]"),
        ("alpha = 0.02", "alpha = 0.01", "[optimizer]"),
    ],
)
def test_a_copy_of_a_deep_model_may_not_read_its_rows_otherwise(
    before: str, after: str, section: str
) -> None:
    original, renamed = parse_spec(DEEP, "news.toml"), DEEP.replace('"news"', '"copy"')
    check_copy(parse_spec(renamed, "copy.toml"), original, "snapshot x")
    assert before in renamed
    with pytest.raises(WrongModel) as refused:
        check_copy(parse_spec(renamed.replace(before, after), "copy.toml"), original, "snapshot x")
    assert str(refused.value).splitlines()[0].endswith(f"differ in {section}:")


def test_a_copy_of_a_deep_model_may_learn_more_examples_at_once_or_with_others() -> None:
    original, renamed = parse_spec(DEEP, "news.toml"), DEEP.replace('"news"', '"copy"')
    for more in ("mini_batch = 7", "synchronous = true"):
        text = renamed.replace("seed = 1", f"seed = 1\n{more}")
        check_copy(parse_spec(text, "copy.toml"), original, "snapshot x")


def test_a_copy_of_a_model_may_have_other_admission_and_expiry() -> None:
    text = SPEC.replace('"news"', '"copy"') + "\n[expiry]\nmost_rows = 1000000\n"
    check_copy(parse_spec(text, "copy.toml"), parse_spec(SPEC, "news.toml"), "snapshot x")
