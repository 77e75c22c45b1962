"""Compiling beforehand: an impression and its click really go down the whole road."""

from __future__ import annotations

from typing import Any

import pytest

from deploy.models import path_of
from deploy.warming import warm
from learner import pending
from learner.spec import load_spec


@pytest.mark.parametrize("name", ["demo", "news", "news_ids", "news_window"])
def test_every_field_and_statistic_of_the_event_becomes_a_row(name: str) -> None:
    spec = load_spec(path_of(name))
    intercept = 1
    assert warm(spec) == intercept + len(spec.fields.singles) + len(spec.statistics)


def test_what_looks_at_gains_is_compiled_too(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = []

    def noted(*arguments: Any) -> Any:
        looked.append(len(arguments))
        return largest(*arguments)

    largest = pending._largest
    monkeypatch.setattr(pending, "_largest", noted)
    warm(load_spec(path_of("demo")))
    assert looked
