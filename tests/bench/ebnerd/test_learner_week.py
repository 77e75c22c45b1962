"""Tests that all learners of the sample week get the same stream."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from headrace.ingest.features.encoder import Encoder
from tests.bench.ebnerd.learner_week import main, week_spec, week_stream
from tests.bench.ebnerd.week import Events, learn
from tests.bench.learner.core import learn_core
from tests.effort import seeds

WINDOW_MS = 1_800_000


def _events(count: int, seed: int) -> Events:
    """Draw a log whose clicks come up to two windows late."""
    random = np.random.default_rng(seed)
    shown_ms = np.sort(random.integers(0, 10_000_000, count))
    impressions = [
        {
            "impression_id": f"i{k}",
            "timestamp_ms": int(at_ms),
            "user_id": int(random.integers(5)),
            "article_id": f"a{random.integers(7)}",
            "page_id": None if random.random() < 0.5 else int(random.integers(3)),
            "slate_size": int(random.integers(5, 30)),
            "device_type": int(random.integers(3)),
            "is_sso_user": bool(random.integers(2)),
            "is_subscriber": False,
        }
        for k, at_ms in enumerate(shown_ms)
    ]
    clicked = np.flatnonzero(random.random(count) < 0.3)
    delays_ms = random.integers(0, 2 * WINDOW_MS, clicked.shape[0])
    return Events(
        impressions,
        pa.array([each["impression_id"] for each in impressions]),
        pa.array([f"r{at_ms // 60_000}" for at_ms in shown_ms]),
        shown_ms,
        clicked,
        shown_ms[clicked] + delays_ms,
    )


@pytest.mark.long
@pytest.mark.parametrize("seed", seeds(2))
def test_ids_numbered_through_teach_what_the_encoded_ones_do(seed: int) -> None:
    spec, events = week_spec(), _events(400, seed)
    # the rivals know no requests, so each impression is one of its own
    events = replace(events, request_ids=events.impression_ids)
    outcome = learn(spec, events, Encoder(spec.fields).encode(events.impressions))
    learned, _, rows = learn_core(week_stream(spec, events), spec.text)
    assert learned.scores is not None
    assert np.array_equal(learned.scores, outcome.scores)
    assert rows == outcome.rows


def test_every_id_has_an_index_and_late_clicks_are_no_clicks() -> None:
    spec, events = week_spec(), _events(400, seed=7)
    stream = week_stream(spec, events)
    ids = Encoder(spec.fields).encode(events.impressions).ids
    pairs = set(zip(ids.ravel().tolist(), stream.indexes.ravel().tolist(), strict=True))
    assert len(pairs) == len({each for each, _ in pairs}) == len({index for _, index in pairs})
    assert 0 <= min(index for _, index in pairs) <= max(index for _, index in pairs)
    assert max(index for _, index in pairs) < stream.all_indexes
    on_time = events.clicked_ms - events.shown_ms[events.clicked] <= WINDOW_MS
    assert 0 < on_time.sum() < events.clicked.shape[0]
    assert np.flatnonzero(stream.labels).tolist() == events.clicked[on_time].tolist()


def test_without_the_week_a_sentence_says_so_and_nothing_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(["--data", str(tmp_path), "--json"])
    assert left.value.code == 0
    said = capsys.readouterr()
    assert said.out == ""
    assert f"not measured: the sample week is not in {tmp_path}" in said.err
