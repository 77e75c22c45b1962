"""`headrace.LocalModel`: the service's path from events to predictions, in one process."""

import random
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet
import pytest

import headrace
from headrace.ingest.events.contract import AHEAD_MS
from headrace.ingest.examples.batch import Examples, concatenate, unpack
from headrace.ingest.joiner.loop import Joiner, JoinerPacing
from headrace.ingest.kafka.fakes import ListReader, ListTransactions, memory_ports
from headrace.ingest.kafka.protocols import Source
from headrace.ingest.kafka.topics import EventTopics, examples_topic
from headrace.learner.batch.event_source import EventLogSource
from headrace.learner.batch.sources import FilePosition
from headrace.learner.kernels.pending_deltas import PendingDeltas, view_of
from headrace.learner.local import in_memory_model
from headrace.learner.loop.merging import ExampleBatch, MergedBatches
from headrace.learner.models.factory import open_model
from headrace.pserver.errors import WrongModel
from headrace.pserver.snapshots.snapshot_errors import NoSnapshot
from headrace.pserver.store import Shape
from headrace.runtime.clock import wall_ms
from tests.learner.shop import BEGIN_MS, CROSS, shop_rows, shop_spec

YEAR_2205_MS = 7_415_712_000_000
OPTIMIZER = """
[optimizer]
name = "ftrl"
alpha = 0.1
"""


def spec_of(policy: str) -> headrace.ModelSpec:
    return shop_spec(CROSS + OPTIMIZER, policy)


def events(count: int, seed: int = 7) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Impressions a second apart, ten a request, and clicks on the items that users like."""
    dice = random.Random(seed)
    impressions, clicks = [], []
    for i in range(count):
        user, item = dice.randrange(5), dice.randrange(20)
        shown: dict[str, Any] = {
            "impression_id": f"i-{i}",
            "request_id": f"r-{i // 10}",
            "timestamp_ms": BEGIN_MS + 1000 * i,
            "user": f"u{user}",
            "item": item,
            "price": dice.random(),
        }
        impressions.append(shown)
        if dice.random() < (0.8 if item % 5 == user else 0.1):
            click_ms = shown["timestamp_ms"] + dice.randrange(1, 50_000)
            clicks.append({"impression_id": f"i-{i}", "timestamp_ms": click_ms})
    return impressions, clicks


@pytest.mark.parametrize("policy", ["immediate", "window"])
def test_a_local_model_scores_as_a_joiner_and_a_learner_do(policy: str) -> None:
    spec, (impressions, clicks) = spec_of(policy), events(600)
    model = headrace.LocalModel(spec)
    model.learn(impressions, clicks)
    model.flush()
    table, scores = _joined_and_learned(spec, impressions, clicks)
    outcomes = model.outcomes()
    assert outcomes.impression_ids.to_pylist() == [e["impression_id"] for e in impressions]
    assert outcomes.scores.tolist() == scores
    assert outcomes.labels.sum() == len(clicks)
    assert len(model) == table


def _joined_and_learned(
    spec: headrace.ModelSpec, impressions: list[dict[str, Any]], clicks: list[dict[str, Any]]
) -> tuple[int, list[float]]:
    """Return the rows and the scores of impressions that a joiner and a model make."""
    batches = [concatenate(_joined(spec, impressions, clicks))]
    model, view = open_model(spec, 16), view_of(spec.width)
    pending = PendingDeltas(view, Shape(spec.name, 16, spec.width, spec.fingerprint, spec.text))
    scores: list[float] = []
    for offset, written in enumerate(batches):
        batch = MergedBatches([ExampleBatch(Source("examples", 0), "0", offset, written)]).examples
        view.reserve(model.rows_needed(batch))
        made = model.learn(view, pending.reserve(), np.ones(16, np.bool_), batch)
        scores += made[~np.isnan(made)].tolist()
    return len(view), scores


def _joined(
    spec: headrace.ModelSpec, impressions: list[dict[str, Any]], clicks: list[dict[str, Any]]
) -> list[Examples]:
    topics, end = EventTopics(), {"timestamp_ms": BEGIN_MS + 10**9}
    sides = {Source(topics.impressions, 0): impressions, Source(topics.clicks, 0): clicks}
    reader = ListReader({source: [] for source in sides})
    for source, sent in sides.items():
        for event in [*sorted(sent, key=lambda event: event["timestamp_ms"]), end]:
            reader.append(source, orjson.dumps(event), event["timestamp_ms"])
    transactions = ListTransactions()
    ports = memory_ports(reader, transactions)
    joiner = Joiner(ports, spec.name, spec.fields, topics, JoinerPacing())
    for _ in range(20):
        joiner.step(0.0)
    joiner.finish()
    topic = examples_topic(spec.name)
    written = [each for each in transactions.written if each.target.topic == topic]
    return [unpack(each.value, spec.fields) for each in written]


def test_learning_in_many_calls_is_learning_in_one() -> None:
    impressions, clicks = events(400)
    whole, parts = (
        headrace.LocalModel(spec_of("immediate")),
        headrace.LocalModel(spec_of("immediate")),
    )
    whole.learn(impressions, clicks)
    for begin in range(0, 400, 50):
        until_ms = BEGIN_MS + 1000 * (begin + 50)
        part = [click for click in clicks if until_ms - 50_000 <= click["timestamp_ms"] < until_ms]
        parts.learn(impressions[begin : begin + 50], part)
    rest = [click for click in clicks if click["timestamp_ms"] >= BEGIN_MS + 400_000]
    parts.learn([], rest)
    assert parts.outcomes().scores.tolist() == whole.outcomes().scores.tolist()
    assert parts.metrics() == whole.metrics()


@pytest.mark.parametrize("policy", ["immediate", "window"])
def test_a_log_on_disk_makes_the_model_of_its_events(policy: str, tmp_path: Path) -> None:
    impressions, clicks = events(6_000)
    clicks.sort(key=lambda event: event["timestamp_ms"])
    for name, sent in (("impressions", impressions), ("clicks", clicks)):
        lines = b"".join(orjson.dumps(event) + b"\n" for event in sent)
        (tmp_path / f"{name}.ndjson").write_bytes(lines)
    wanted = headrace.LocalModel(spec_of(policy))
    given = wanted.learn(impressions, clicks)
    found = headrace.LocalModel(spec_of(policy))
    assert found.learn_log(tmp_path) == given
    assert found.outcomes().scores.tolist() == wanted.outcomes().scores.tolist()
    wanted.flush()
    found.flush()
    assert found.predict(impressions[:50]).tolist() == wanted.predict(impressions[:50]).tolist()


def test_a_table_on_disk_makes_the_model_of_its_rows(tmp_path: Path) -> None:
    rows = shop_rows(6_000).drop_columns("tags")
    pyarrow.parquet.write_table(rows, tmp_path / "log.parquet")
    layout = tmp_path / "layout.toml"
    layout.write_text('[event]\ntimestamp = "timestamp_ms"\n[click]\ncolumn = "clicked"\n')
    wanted, found, guessed = (headrace.LocalModel(spec_of("window")) for _ in range(3))
    wanted.learn(rows, label="clicked")
    found.learn_log(tmp_path / "log.parquet", layout)
    guessed.learn_log(tmp_path / "log.parquet")
    assert found.outcomes().scores.tolist() == wanted.outcomes().scores.tolist()
    assert guessed.outcomes().scores.tolist() == wanted.outcomes().scores.tolist()


def test_a_label_column_and_datetimes_are_enough() -> None:
    impressions, clicks = events(200)
    clicked = {click["impression_id"] for click in clicks}
    rows = [
        {
            "user": each["user"],
            "item": each["item"],
            "price": each["price"],
            "timestamp_ms": datetime.fromtimestamp(each["timestamp_ms"] / 1000, UTC),
            "clicked": each["impression_id"] in clicked,
        }
        for each in impressions
    ]
    model = headrace.LocalModel(spec_of("immediate"))
    for half in (rows[:100], rows[100:]):
        assert model.learn(half, label="clicked").refused == ()
    assert len(model.outcomes()) == 200
    assert model.outcomes().labels.sum() == len(clicked)
    with pytest.raises(ValueError, match=r"label: expected a column 'sold' in every row, got none"):
        model.learn(rows, label="sold")


def test_an_event_that_cannot_be_used_comes_back_with_its_reason() -> None:
    model = headrace.LocalModel(spec_of("immediate"))
    bad = [{"impression_id": "x", "timestamp_ms": 5}, {"timestamp_ms": BEGIN_MS, "user": "u1"}]
    impressions, clicks = events(10)
    summary = model.learn([*bad, *impressions], clicks)
    assert summary.examples == 10 + len(clicks)
    assert [each.event for each in summary.refused] == [orjson.dumps(each) for each in bad]
    assert "2000" in summary.refused[0].reason
    assert "impression_id" in summary.refused[1].reason
    with pytest.raises(TypeError, match="expected an iterable of events"):
        model.learn(b"events.csv"[0])


@pytest.mark.parametrize("how", ["events", "directory", "table"])
def test_an_event_dated_far_ahead_is_refused_and_changes_no_other_example(
    how: str, tmp_path: Path
) -> None:
    place = 150
    shown = shop_rows(300).drop_columns(["tags", "clicked"]).to_pylist()
    shown = [{**row, "impression_id": f"i-{i}"} for i, row in enumerate(shown)]
    clicks = [
        {"impression_id": f"i-{i}", "timestamp_ms": shown[i]["timestamp_ms"] + 30_000}
        for i in range(0, 300, 3)
        if i != place
    ]
    typo = {**shown[place], "timestamp_ms": YEAR_2205_MS}
    log = [*shown[:place], typo, *shown[place + 1 :]]
    rest = [each for each in shown if each is not shown[place]]
    wanted, found = (headrace.LocalModel(spec_of("window")) for _ in range(2))
    if how == "table":
        wanted.learn(rest)
        pyarrow.parquet.write_table(pa.Table.from_pylist(log), tmp_path / "log.parquet")
        layout = tmp_path / "layout.toml"
        layout.write_text('[event]\nimpression_id = "impression_id"\ntimestamp = "timestamp_ms"\n')
        summary = found.learn_log(tmp_path / "log.parquet", layout)
    elif how == "directory":
        wanted.learn(rest, clicks)
        for name, sent in (("impressions", log), ("clicks", clicks)):
            lines = b"".join(orjson.dumps(event) + b"\n" for event in sent)
            (tmp_path / f"{name}.ndjson").write_bytes(lines)
        summary = found.learn_log(tmp_path)
        blocks = EventLogSource([tmp_path], wanted.spec).blocks(FilePosition())
        of_a_fit = concatenate([block.examples for block in blocks])
        assert of_a_fit.impression_ids.to_pylist() == [each["impression_id"] for each in rest]
        assert of_a_fit.labels.sum() == len(clicks)
    else:
        wanted.learn(rest, clicks)
        summary = found.learn(log, clicks)
    [refused] = summary.refused
    assert "at most a day after" in refused.reason
    for model in (wanted, found):
        model.flush()
    assert found.outcomes().labels.tolist() == wanted.outcomes().labels.tolist()
    assert found.outcomes().scores.tolist() == wanted.outcomes().scores.tolist()


def test_an_event_of_the_next_day_counts_as_of_now() -> None:
    model, now_ms = headrace.LocalModel(spec_of("immediate")), wall_ms()
    tomorrow = {"impression_id": "i-0", "timestamp_ms": now_ms + AHEAD_MS // 2, "user": "u1"}
    assert model.learn([tomorrow]).examples == 1
    later = {"impression_id": "i-1", "timestamp_ms": wall_ms(), "user": "u1"}
    assert model.learn([later]) == headrace.LearnSummary(1, ())
    [first, second] = model.outcomes().event_ms.tolist()
    assert now_ms <= first <= second <= wall_ms()


def test_a_strict_prediction_refuses_fields_that_the_model_does_not_read() -> None:
    model = headrace.LocalModel(spec_of("immediate"))
    own = [{"item": 1, "price": 2.0, "impression_id": "i", "timestamp_ms": BEGIN_MS}, {"item": 2}]
    context = {"user": "u1", "tags": ["a"], "request_id": "r"}
    known = model.predict(own, context, at_ms=BEGIN_MS)
    np.testing.assert_array_equal(known, model.predict(own, context, at_ms=BEGIN_MS, strict=True))
    misspelled = [own[0], {"itme": 2, "colour": "red"}]
    model.predict(misspelled, context)
    with pytest.raises(ValueError, match="an unknown field") as caught:
        model.predict(misspelled, context, strict=True)
    names = "impression_id, item, price, request_id, tags, timestamp_ms, user"
    assert str(caught.value) == (
        f'candidates[1].itme: expected a field of the model, one of {names} (did you mean "item"?),'
        " got an unknown field; also unknown: colour"
    )
    with pytest.raises(ValueError, match=r"candidates\[0\]\.colour: expected"):
        model.predict(pa.table({"item": [1], "colour": ["red"]}), context, strict=True)
    with pytest.raises(ValueError, match=r"context\.usr: expected .*\(did you mean \"user\"\?\)"):
        model.predict(own, {"usr": "u1"}, strict=True)


@pytest.mark.parametrize("policy", ["immediate", "window"])
def test_a_saved_model_predicts_and_goes_on_as_it_would_have(policy: str, tmp_path: Path) -> None:
    model = headrace.LocalModel(spec_of(policy))
    model.learn(*events(300))
    model.flush()
    name = model.save(tmp_path)
    loaded = headrace.LocalModel.load(tmp_path)
    assert loaded.spec.fingerprint == model.spec.fingerprint
    assert len(loaded) == len(model)
    later = [
        [{**event, "timestamp_ms": event["timestamp_ms"] + 10**6} for event in side]
        for side in events(200, seed=8)
    ]
    assert loaded.predict(later[0]).tolist() == model.predict(later[0]).tolist()
    for each in (model, loaded):
        each.learn(*[[{**e, "impression_id": f"l-{e['impression_id']}"} for e in s] for s in later])
        each.flush()
    assert len(loaded.outcomes()) == 200
    assert loaded.outcomes().scores.tolist() == model.outcomes().scores.tolist()[300:]
    assert headrace.LocalModel.load(tmp_path, name, spec=spec_of(policy)).spec.name == "shop"


def test_a_snapshot_of_another_spec_or_whose_spec_has_another_meaning_now_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = headrace.LocalModel(spec_of("immediate"))
    model.learn(*events(10))
    model.save(tmp_path)
    with pytest.raises(WrongModel):
        headrace.LocalModel.load(tmp_path, spec=spec_of("window"))

    def of_another_version(text: str, path: str) -> headrace.ModelSpec:
        return replace(headrace.parse_spec(text, path), fingerprint="of another version")

    monkeypatch.setattr(in_memory_model, "parse_spec", of_another_version)
    with pytest.raises(WrongModel):
        headrace.LocalModel.load(tmp_path)


@pytest.mark.thorough  # a process that imports the kernels
def test_a_local_model_needs_neither_a_kafka_client_nor_a_redis_client() -> None:
    code = (
        "import sys\n"
        "for name in ('confluent_kafka', 'redis', 'fastapi'): sys.modules[name] = None\n"
        "import headrace\n"
        "from headrace.deploy.models.shipped import path_of\n"
        "model = headrace.LocalModel(path_of('demo'))\n"
        "model.learn([{'impression_id': 'a', 'timestamp_ms': 1_700_000_000_000}])\n"
        "print(model.predict([{'item_id': 1}]).shape)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "(1,)", done.stderr


def test_an_empty_folder_has_no_model_to_load(tmp_path: Path) -> None:
    with pytest.raises(NoSnapshot, match=r"expected a saved model in .*, got none"):
        headrace.LocalModel.load(tmp_path)
