"""Shipped specs load, and a spec has the parts of its text.

Refusals with file and line, and fingerprints one by one, are in recorded_specs.json.
"""

from pathlib import Path

import pytest

from headrace.ingest.features.spec_text import SpecError
from headrace.learner.spec.admission_and_expiry import Admission
from headrace.learner.spec.model_spec import load_spec, parse_spec
from tests.learner.shipped_specs import MODELS

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
    ("name", "weight", "dimensions"),
    [
        *(("news", 2, 0), ("news_ids", 3, 0), ("news_window", 2, 0), ("demo", 2, 0)),
        *(("news_fm", 2, 8), ("news_deepfm", 3, 8), ("news_dcn", 3, 8)),
    ],
)
def test_a_row_has_the_floats_of_weight_vector_and_optimizer_state(
    name: str, weight: int, dimensions: int
) -> None:
    spec = load_spec(MODELS / f"{name}.toml")
    assert (spec.name, spec.width) == (name, weight + 2 * dimensions)
    if dimensions:  # the inputs of the linear model, so that all of them can learn its examples
        assert spec.fields.fingerprint == load_spec(MODELS / "news.toml").fields.fingerprint


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


def test_a_missing_spec_file_is_named_in_the_error(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"absent\.toml"):
        load_spec(tmp_path / "absent.toml")
