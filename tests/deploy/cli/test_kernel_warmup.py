"""Compiling beforehand: requests and clicks really go down the whole pipeline."""

import subprocess
import sys
from unittest.mock import Mock

import numpy as np
import pytest
from numba.core import event

from headrace.deploy.local.kernel_warmup import SHOWN_MS, warm, warm_learner, warm_server
from headrace.deploy.models.shipped import path_of
from headrace.learner.spec.model_spec import load_spec
from headrace.pserver.rows import table
from headrace.pserver.rows.table import RowTable
from headrace.serving.models.absent_rows import learned_shares
from headrace.serving.models.loading import served_by
from headrace.serving.replicas.status import TableRowSource
from headrace.serving.requests.candidates import Candidates


@pytest.mark.parametrize("name", ["demo", "news", "news_ids", "news_window"])
def test_every_field_and_statistic_of_the_events_becomes_rows(name: str) -> None:
    spec = load_spec(path_of(name))
    fields = 1 + len(spec.fields.singles) + len(spec.statistics)  # the intercept first
    assert min(warm(spec), warm_learner(spec)) >= fields


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["demo", "news", "news_window"])
def test_a_joiner_and_a_learner_compile_nothing_after_the_warmup(name: str) -> None:
    command = [sys.executable, "-m", "tests.deploy.cli.kernels_of_a_stream", name]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == []


def test_a_server_compiles_nothing_after_its_warmup() -> None:
    spec = load_spec(path_of("demo"))
    warm_server(spec)
    with event.install_recorder("numba:compile") as recorder:
        predictor = served_by(spec, 2, Mock(), Mock()).predictor
        rows, asked = TableRowSource(RowTable(spec.width)), Candidates({}, [{}, {}])
        predictor.predict(rows, asked, SHOWN_MS, np.full(1, 2))
        predictor.explain(rows, asked, SHOWN_MS)
        learned_shares(spec.fields, rows, SHOWN_MS)
    assert recorder.buffer == []


def test_a_served_model_has_loaded_what_the_first_check_of_its_requests_calls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kernel = Mock(wraps=table._find_many)
    monkeypatch.setattr(table, "_find_many", kernel)
    served_by(load_spec(path_of("demo")), 2, Mock(), Mock())
    assert kernel.called, "else a request would wait while the search of rows is compiled"
