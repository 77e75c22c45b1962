"""Shipped specs load, and a spec has the parts of its text.

Refusals with file and line, and fingerprints one by one, are in recorded_specs.json.
"""

import re
from pathlib import Path

import pytest

from headrace.ingest.features.spec_text import SpecError
from headrace.learner.spec.admission_and_expiry import Admission
from headrace.learner.spec.model_spec import load_spec, parse_spec
from tests.learner.shipped_specs import MODELS
from tests.learner.streams import FIELDS, of_ids_alone

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


@pytest.mark.parametrize(
    ("name", "width"), [("news", 2), ("news_ids", 3), ("news_window", 2), ("demo", 2)]
)
def test_a_shipped_spec_loads(name: str, width: int) -> None:
    spec = load_spec(MODELS / f"{name}.toml")
    assert spec.name == name
    assert spec.width == width


@pytest.mark.parametrize(("name", "weight"), [("news_fm", 2), ("news_deepfm", 3), ("news_dcn", 3)])
def test_a_row_has_the_floats_of_weight_vector_and_optimizer_state(name: str, weight: int) -> None:
    spec = load_spec(MODELS / f"{name}.toml")
    assert spec.name == name
    assert spec.width == weight + 8 * 2
    # the inputs of the linear model, so that all of them can learn its examples
    assert spec.fields.fingerprint == load_spec(MODELS / "news.toml").fields.fingerprint


def test_the_news_specs_have_the_policies_in_their_names() -> None:
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


def test_a_spec_has_the_parts_of_its_text() -> None:
    spec = parse_spec(GOOD, "m.toml")
    assert spec.architecture == "logistic_regression"
    assert [each.name for each in spec.statistics] == ["item_rate", "both"]
    assert spec.statistics[0].per_doubling == 4.0
    assert (spec.optimizer.alpha, spec.optimizer.l2) == (0.1, 1.0)
    assert spec.text == GOOD


GROWING = (
    GOOD
    + """\

[fields.tags]
number = 3
transform = "bag"

[fields.size]
number = 4
transform = "log_bucket"

[admission]
kind = "count"
sightings = 3

[expiry]
after_days = 30
most_rows = 1_000_000
"""
)


def test_a_spec_declares_admission_and_expiry() -> None:
    spec = parse_spec(GROWING, "m.toml")
    assert spec.admission == Admission("count", ("item", "tags"), 3, 64, 4, 0.01)
    assert (spec.expiry.after_s, spec.expiry.most_rows) == (30 * 86_400, 1_000_000)
    old, new = 'kind = "count"\nsightings = 3', 'kind = "probability"\nprobability = 0.5'
    drawn = parse_spec(GROWING.replace(old, new + '\nfields = ["tags"]'), "m.toml").admission
    assert drawn == Admission("probability", ("tags",), probability=0.5)


def test_a_spec_without_admission_and_expiry_keeps_every_row() -> None:
    spec = parse_spec(GOOD, "m.toml")
    assert spec.admission is None
    assert not spec.expiry


def test_a_missing_spec_file_is_named_in_the_error(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"absent\.toml"):
        load_spec(tmp_path / "absent.toml")


def test_the_fingerprint_covers_the_meaning_and_not_the_text() -> None:
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


def test_the_fingerprint_covers_admission_and_expiry() -> None:
    fingerprint = parse_spec(GROWING, "m.toml").fingerprint
    written_out = GROWING.replace("sightings = 3", 'sightings = 3\nfields = ["tags", "item"]')
    written_out = written_out.replace("sightings = 3", "sightings = 3\nhashes = 4")
    assert parse_spec(written_out, "m.toml").fingerprint == fingerprint
    for old, new in [
        ("sightings = 3", "sightings = 4"),
        ("sightings = 3", 'sightings = 3\nfields = ["tags"]'),
        ("sightings = 3", "sightings = 3\nfilter_mb = 32"),
        ("after_days = 30", "after_days = 31"),
        ("most_rows = 1_000_000", ""),
        ('[admission]\nkind = "count"\nsightings = 3', ""),
    ]:
        assert parse_spec(GROWING.replace(old, new), "m.toml").fingerprint != fingerprint


DEEP = (
    GOOD.replace(
        'name = "m"',
        """name = "m"
architecture = "din"
dimensions = 8
layers = [16, 8]
history = "tags"
target = "item"
""",
    )
    + """\

[fields.tags]
number = 3
transform = "bag"

[optimizer.embeddings]
name = "adam"

[optimizer.dense]
name = "sgd"
decay_per_day = 0.1
"""
)


def test_a_deep_spec_has_the_parts_of_its_text() -> None:
    spec = parse_spec(DEEP, "m.toml")
    structure, optimizers = spec.structure, spec.optimizers
    assert (structure.dimensions, structure.layers, structure.mini_batch) == (8, (16, 8), 128)
    assert (structure.history, structure.target) == ("tags", "item")
    assert optimizers.embeddings is not None
    assert optimizers.dense is not None
    assert (optimizers.embeddings.name, optimizers.dense.decay_per_day) == ("adam", 0.1)
    assert spec.width == 2 + 3 * 8 + 1


@pytest.mark.parametrize(
    ("group", "more", "why"),
    [
        ("", "", "[fields.price] is a number"),
        (".embeddings", "", "[fields.price] is a number"),
        (".dense", "", ""),
        ("", 'weight = "w"', "weight lets examples weigh more"),
        (".embeddings", "negative_rate = 0.1", "negative_rate lets examples weigh more"),
        (".dense", "negative_rate = 0.1", "negative_rate lets examples weigh more"),
    ],
)
def test_coin_is_refused_where_it_would_clip_one_outcome_more_than_the_other(
    group: str, more: str, why: str
) -> None:
    model = 'architecture = "deepfm"\ndimensions = 3\nlayers = [4]\n'
    text = FIELDS.format(policy="window").replace("[model]", "[model]\n" + model)
    text = of_ids_alone(text) if more else text
    text += f'[examples]\n{more}\n[optimizer{group}]\nname = "coin"\n'
    if not why:
        assert parse_spec(text, "m.toml").optimizers.dense.name == "coin"  # type: ignore[union-attr]
        return
    line = len(text.splitlines())
    with pytest.raises(SpecError, match=rf"m.toml:{line}: expected sgd, .*{re.escape(why)}.*coin"):
        parse_spec(text, "m.toml")
