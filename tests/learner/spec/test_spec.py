"""Shipped specs load, and an invalid spec is refused with file and line."""

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


@pytest.mark.parametrize(
    ("old", "new", "line", "expected"),
    [
        ("[model]", "[modle]", 1, "model"),
        ('name = "m"', 'name = "M M"', 2, "name of a-z"),
        ('name = "m"', 'name = "m"\narchitecture = "forest"', 3, "logistic_regression"),
        ('name = "m"', 'name = "m"\nnmae = "m"', 3, "name"),
        ('transform = "id"', 'transform = "idd"', 6, "id"),
        (
            'transform = "id"',
            'transfrom = "id"',
            6,
            'did you mean "transform"?), found "transfrom"',
        ),
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
        ("alpha = 0.1", 'name = "adagard"', 23, "adagrad"),
        ("alpha = 0.1", 'name = "sgd"\nl2 = 1.0', 24, "alpha"),
        ("alpha = 0.1", "[optimizer.embeddings]", 23, "l1"),
        ("alpha = 0.1", 'name = "coin"', 23, "since [fields.price] is a number"),
        ("alpha = 0.1", 'name = "coin"\n[examples]\nweight = "w"', 23, "[examples] weight lets"),
        ('name = "m"', 'name = "m"\ndimensions = 4', 3, "architecture"),
    ],
)
def test_an_invalid_spec_is_refused_with_file_and_line(
    old: str, new: str, line: int, expected: str
) -> None:
    _assert_refused(GOOD, old, new, line, expected)


def _assert_refused(good: str, old: str, new: str, line: int, expected: str) -> None:
    text = good.replace(old, new, 1)
    assert text != good
    with pytest.raises(SpecError) as caught:
        parse_spec(text, "dir/m.toml")
    message = str(caught.value)
    assert message.startswith(f"dir/m.toml:{line}: expected "), message
    assert expected in message
    assert ", found " in message


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


@pytest.mark.parametrize(
    ("old", "new", "line", "expected"),
    [
        ("[admission]", "[admision]", 33, "admission"),
        ('kind = "count"', 'kind = "cuont"', 34, 'did you mean "count"?'),
        ('kind = "count"', "", 33, "kind one of count, probability"),
        ("sightings = 3", "", 33, "sightings, a whole number from 2 to 250"),
        ("sightings = 3", "sightings = 1", 35, "2 to 250"),
        ("sightings = 3", "sightings = 2.5", 35, "2 to 250"),
        ("sightings = 3", "sightings = true", 35, "2 to 250"),
        ("sightings = 3", "sightings = 3\nprobability = 0.1", 36, "probability"),
        ("sightings = 3", "sightings = 3\nfilter_mb = 0", 36, "1 to 4096"),
        ("sightings = 3", "sightings = 3\nhashes = 9", 36, "1 to 8"),
        ("sightings = 3", "sightings = 3\nfalse_rate = 0", 36, "1e-06 to 0.5"),
        ("sightings = 3", "sightings = 3\nfields = []", 36, "each once"),
        ("sightings = 3", 'sightings = 3\nfields = ["tags", "tags"]', 36, "each once"),
        ("sightings = 3", 'sightings = 3\nfields = ["tgas"]', 36, 'did you mean "tags"?'),
        ("sightings = 3", 'sightings = 3\nfields = ["price"]', 36, "id, cross or bag"),
        ("sightings = 3", 'sightings = 3\nfields = ["size"]', 36, "id, cross or bag"),
        ("sightings = 3", 'sightings = 3\nfields = ["item_rate"]', 36, "id, cross or bag"),
        ('kind = "count"', 'kind = "probability"', 35, "sightings"),
        (
            'kind = "count"\nsightings = 3',
            'kind = "probability"',
            33,
            "probability from 1e-06 to 1",
        ),
        ("after_days = 30", "after_days = 0", 38, "0.0001 to 36500"),
        ("after_days = 30", "after_days = 0.02", 38, "at least 0.02083, the label's window"),
        ("after_days = 30", "after_day = 30", 38, 'did you mean "after_days"?'),
        ("most_rows = 1_000_000", "most_rows = 0", 39, "1 to 1000000000000"),
        ("most_rows = 1_000_000", "most_rows = 1e6", 39, "a whole number"),
        ("after_days = 30\nmost_rows = 1_000_000", "", 37, "after_days or most_rows"),
    ],
)
def test_an_invalid_admission_or_expiry_is_refused_with_file_and_line(
    old: str, new: str, line: int, expected: str
) -> None:
    _assert_refused(GROWING, old, new, line, expected)


def test_an_admission_without_ids_to_admit_is_refused() -> None:
    text = '[model]\nname = "m"\n[fields.hour]\nnumber = 1\ntransform = "hour"\n'
    with pytest.raises(SpecError, match=r"m\.toml:6: expected a field of transform id"):
        parse_spec(text + '[admission]\nkind = "count"\nsightings = 2\n', "m.toml")


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


@pytest.mark.parametrize(
    ("name", "fingerprint"),
    [
        ("news", "43cc269b3f09876b"),
        ("news_ids", "61e94b18eed4fe43"),
        ("news_window", "4f62dc054896dbf4"),
        ("demo", "0000a66e7493ce03"),
    ],
)
def test_a_shipped_spec_keeps_its_fingerprint(name: str, fingerprint: str) -> None:
    """With another one, no process would start on an existing store."""
    assert load_spec(MODELS / f"{name}.toml").fingerprint == fingerprint


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
    ("old", "new"),
    [
        ("dimensions = 8", "dimensions = 4"),
        ("layers = [16, 8]", "layers = [16]"),
        ("layers = [16, 8]", "seed = 2"),
        ('name = "sgd"', 'name = "adagrad"'),
        ("decay_per_day = 0.1", "decay_per_day = 0.2"),
        ('name = "adam"', 'name = "adam"\nbeta1 = 0.8'),
        ('architecture = "din"', 'architecture = "module"\nmodule = "some.where:Model"'),
    ],
)
def test_another_network_has_another_fingerprint(old: str, new: str) -> None:
    changed = DEEP.replace(old, new, 1)
    assert parse_spec(changed, "m.toml").fingerprint != parse_spec(DEEP, "m.toml").fingerprint


@pytest.mark.parametrize(
    ("old", "new", "line", "expected"),
    [
        ("dimensions = 8", "dimensions = 0", 4, "1 to 256"),
        ("layers = [16, 8]", "layers = []", 5, "widths"),
        ("layers = [16, 8]", "layers = [16, 0]", 5, "widths"),
        ("layers = [16, 8]", "layres = [16, 8]", 5, "layers"),
        ("layers = [16, 8]", "cross_layers = 2", 5, "cross_layers"),
        ('history = "tags"', 'history = "item"', 6, "= the name of a field of transform bag"),
        ('target = "item"', 'target = "tags"', 7, "single-valued"),
        ('target = "item"', "", 1, "target"),
        ('architecture = "din"', 'architecture = "module"', 1, "module = a class"),
        ('name = "adam"', 'name = "adma"', 36, "adam"),
        ('name = "adam"', "l1 = 1.0", 36, "epsilon"),
        ("[optimizer.dense]", "[optimizer.dens]", 38, "dense"),
    ],
)
def test_an_invalid_deep_spec_is_refused_with_its_line(
    old: str, new: str, line: int, expected: str
) -> None:
    _assert_refused(DEEP, old, new, line, expected)


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
