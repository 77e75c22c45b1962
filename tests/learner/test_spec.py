"""Model specs: what is ready to run loads, and whatever is wrong is refused by file and line."""

from pathlib import Path

import pytest

import deploy
from learner.spec import SpecError, load_spec, parse_spec

MODELS = Path(deploy.__file__).parent / "models"

GOOD = """\
[model]
name = "m"

[fields.item]
number = 1
transform = "id"

[fields.price]
number = 2
transform = "number"

[statistics.item_rate]
number = 40
statistic = "rate"
of = "item"
per_doubling = 4

[statistics.both]
number = 41
cross = ["item_rate", "item"]

[optimizer]
alpha = 0.1
"""


@pytest.mark.parametrize("name", ["news", "news_ids", "news_window", "demo"])
def test_the_specs_that_are_ready_to_run_load(name: str) -> None:
    spec = load_spec(MODELS / f"{name}.toml")
    assert spec.name == name
    assert spec.width == 2


def test_the_policies_of_the_news_specs_are_what_they_are_named_for() -> None:
    policies = {
        name: load_spec(MODELS / f"{name}.toml").fields.label
        for name in ("news", "news_ids", "news_window")
    }
    assert policies["news"].policy == policies["news_ids"].policy == "immediate"
    assert (policies["news_window"].policy, policies["news_window"].window_ms) == (
        "window",
        600_000,
    )
    assert load_spec(MODELS / "news_ids.toml").statistics == ()


def test_a_good_spec_has_its_parts() -> None:
    spec = parse_spec(GOOD, "m.toml")
    assert spec.architecture == "logistic_regression"
    assert [each.name for each in spec.statistics] == ["item_rate", "both"]
    assert spec.statistics[0].per_doubling == 4.0
    assert (spec.optimizer.alpha, spec.optimizer.l2) == (0.1, 1.0)
    assert spec.text == GOOD


@pytest.mark.parametrize(
    ("old", "new", "line", "expected"),
    [
        ("[model]", "[modle]", 1, "model"),
        ('name = "m"', 'name = "M M"', 2, "name of a-z"),
        ('name = "m"', 'name = "m"\narchitecture = "forest"', 3, "logistic_regression"),
        ('name = "m"', 'name = "m"\nnmae = "m"', 3, "name"),
        ('transform = "id"', 'transform = "idd"', 6, "id"),
        ("[statistics.item_rate]", "[statistics.Item]", 12, "a-z"),
        ("[statistics.item_rate]", "[statistics.item]", 12, "no field has"),
        ("number = 40", "number = 1", 13, 'the number of "item"'),
        ("number = 41", "number = 40", 19, 'the number of "item_rate"'),
        ("number = 41", "number = 1001", 19, "1 to 1000"),
        ('statistic = "rate"', 'statistic = "raet"', 14, "rate"),
        ('statistic = "rate"', "", 12, "nothing"),
        ('of = "item"', 'of = "itme"', 15, "item"),
        ('of = "item"', 'of = "price"', 15, "single-valued"),
        ('of = "item"', "of = 3", 15, "3"),
        ("per_doubling = 4", "per_doubling = 0", 16, "0.01 to 1000"),
        ("per_doubling = 4", "per_dubling = 4", 16, "per_doubling"),
        ('statistic = "rate"', 'statistic = "show"\nprior_shows = 3', 15, "prior_shows"),
        ('["item_rate", "item"]', '["item_rate", "itme"]', 20, '"itme"'),
        ('["item_rate", "item"]', '["item_rate"]', 20, "two or more"),
        ('["item_rate", "item"]', '["item", "item"]', 20, "at least one statistic"),
        ('["item_rate", "item"]', '["item_rate", "item"]\nof = "item"', 21, "of"),
        ("alpha = 0.1", "alpha = 0", 23, "alpha"),
        ("alpha = 0.1", 'alpha = "a"', 23, "alpha"),
        ("alpha = 0.1", "alpah = 0.1", 23, "alpha"),
        ("alpha = 0.1", 'name = "adam"', 23, "ftrl"),
    ],
)
def test_what_is_wrong_is_refused_by_file_and_line(
    old: str, new: str, line: int, expected: str
) -> None:
    text = GOOD.replace(old, new, 1)
    assert text != GOOD
    with pytest.raises(SpecError) as caught:
        parse_spec(text, "dir/m.toml")
    message = str(caught.value)
    assert message.startswith(f"dir/m.toml:{line}: expected "), message
    assert expected in message
    assert ", found " in message


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"absent\.toml"):
        load_spec(tmp_path / "absent.toml")


def test_the_fingerprint_is_of_the_meaning() -> None:
    fingerprint = parse_spec(GOOD, "m.toml").fingerprint
    same = "# a comment\n" + GOOD.replace("alpha = 0.1", "alpha = 0.10\nbeta = 1.0")
    assert parse_spec(same, "elsewhere.toml").fingerprint == fingerprint
    for old, new in [
        ("alpha = 0.1", "alpha = 0.2"),
        ("number = 41", "number = 42"),
        ("per_doubling = 4", "per_doubling = 5"),
        ('transform = "number"', 'transform = "bag"'),
        ('name = "m"', 'name = "n"'),
    ]:
        assert parse_spec(GOOD.replace(old, new), "m.toml").fingerprint != fingerprint
