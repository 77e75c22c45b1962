"""Compiling beforehand: an impression and its click really go down the whole road."""

from __future__ import annotations

import pytest

from deploy.models import path_of
from deploy.warming import warm
from learner.spec import load_spec


@pytest.mark.parametrize("name", ["demo", "news", "news_ids", "news_window"])
def test_every_field_and_statistic_of_the_event_becomes_a_row(name: str) -> None:
    spec = load_spec(path_of(name))
    intercept = 1
    assert warm(spec) == intercept + len(spec.fields.singles) + len(spec.statistics)
