"""Compiling beforehand: an impression and its click really go down the whole road."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from deploy.models import path_of
from deploy.warming import warm
from learner import pending
from learner.spec import load_spec
from pserver import table

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize("name", ["demo", "news", "news_ids", "news_window"])
def test_every_field_and_statistic_of_the_event_becomes_a_row(name: str) -> None:
    spec = load_spec(path_of(name))
    intercept = 1
    assert warm(spec) == intercept + len(spec.fields.singles) + len(spec.statistics)


def test_what_copies_rows_and_looks_at_gains_is_compiled_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    called = set()

    def noted(name: str, kernel: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            called.add(name)
            return kernel(*arguments)

        return call

    for module, name in ((table, "_copy"), (pending, "_copy"), (pending, "_largest")):
        whole = f"{module.__name__}.{name}"
        monkeypatch.setattr(module, name, noted(whole, getattr(module, name)))
    warm(load_spec(path_of("demo")))
    assert called == {"pserver.table._copy", "learner.pending._copy", "learner.pending._largest"}
