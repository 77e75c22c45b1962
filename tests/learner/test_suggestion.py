"""Tests `headrace suggest`: the printed spec loads, and its fields fit what the columns hold."""

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from headrace.ingest.features.spec_text import SpecError
from headrace.ingest.logs.layout import parse_layout
from headrace.ingest.logs.layout_guess import guess_layout
from headrace.learner.spec.model_spec import ModelSpec, parse_spec
from headrace.learner.suggestion.spec_suggestion import suggest_spec

T0_MS = 1_700_000_000_000
ROWS = 20_000
SEED = 5


@functools.cache
def columns(base_rate: float = 0.1) -> dict[str, list[Any]]:
    """A log in which only the combination of device and section matters."""
    dice = np.random.default_rng(SEED)
    device, section = dice.integers(0, 2, ROWS), dice.integers(0, 3, ROWS)
    likely = (device == 0) == (section == 1)
    clicked = dice.random(ROWS) < np.where(likely, 2 * base_rate, base_rate / 4)
    return {
        "time": [T0_MS + 2_000 * i for i in range(ROWS)],
        "view": [f"v{i // 5}" for i in range(ROWS)],
        "User ID": [f"u{i}" for i in dice.integers(0, 3_000, ROWS)],
        "device": ["phone" if each else "desktop" for each in device],
        "section": [f"s{each}" for each in section],
        "age": dice.exponential(1000.0, ROWS).tolist(),
        "slot": dice.integers(0, 8, ROWS).tolist(),
        "topics": [["a", "b", "c"][: 1 + i % 3] for i in range(ROWS)],
        "country": ["de"] * ROWS,
        "session_token": [f"{SEED}-{i}" for i in range(ROWS)],
        "clicked_at": [
            T0_MS + 2_000 * i + 4_000 if each else None for i, each in enumerate(clicked)
        ],
    }


def suggested(path: Path) -> tuple[str, ModelSpec]:
    layout = guess_layout(path).layout if path.is_file() else None
    text = suggest_spec(path, layout).text
    return text, parse_spec(text, "suggested.toml")


@pytest.mark.parametrize("kind", ["parquet", "csv", "ndjson", "directory"])
def test_the_suggested_spec_fits_the_columns_of_a_log_in_every_format(
    tmp_path: Path, kind: str
) -> None:
    table = pa.table(columns())
    path = tmp_path / f"log.{kind}"
    if kind == "parquet":
        pa.parquet.write_table(table, path)
    elif kind == "csv":
        joined = ["|".join(each) for each in table["topics"].to_pylist()]
        place = table.column_names.index("topics")
        pa.csv.write_csv(table.set_column(place, "topics", pa.array(joined)), path)
    elif kind == "ndjson":
        path.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))
    else:
        path = tmp_path
        write_directory(path, table)
    text, spec = suggested(path)
    transforms = {
        each.name: str(each.transform)
        for each in (*spec.fields.singles, *spec.fields.bags, *spec.fields.numbers)
    }
    assert transforms == {
        "user_id": "id",
        "device": "id",
        "section": "id",
        "age": "log_bucket",
        "slot": "id",
        "topics": "bag",
        "hour": "hour",
    }
    assert spec.fields["user_id"].source == "User ID"
    assert "# not used: country: one value only" in text
    assert "# not used: session_token: 20,000 values: nearly every row has its own" in text
    assert spec.fields.label.window_ms == 60_000
    assert [each.name for each in spec.statistics] == ["user_id_rate"]
    clicks = sum(each is not None for each in columns()["clicked_at"])
    assert spec.structure.base_rate == pytest.approx(clicks / ROWS, rel=0.01)
    assert spec.structure.click_delay_s == pytest.approx(4.0)
    # fields with the bag, the hour and one rate; five candidates in a request
    assert spec.optimizer.alpha == pytest.approx(0.7 if kind == "directory" else 0.673)
    assert spec.optimizer.l2 == pytest.approx(8.0 / 2.0)
    assert spec.calibration is not None
    assert spec.calibration.kind == "shrinkage"
    [bag] = spec.fields.bags
    assert bag.pooling == "sqrt"


@pytest.mark.parametrize("architecture", ["factorization_machine", "deepfm"])
def test_the_suggested_constants_of_an_architecture_with_vectors_are_valid(
    tmp_path: Path, architecture: str
) -> None:
    path = tmp_path / "log.parquet"
    pa.parquet.write_table(pa.table(columns()), path)
    text = suggest_spec(path, guess_layout(path).layout, "", architecture).text
    spec = parse_spec(text, "suggested.toml")
    assert spec.architecture == architecture
    assert spec.optimizers.embeddings is not None
    assert (spec.optimizers.embeddings.name, spec.optimizers.embeddings.l2) == ("ftrl", 10.0)
    assert spec.optimizers.embeddings.alpha <= 0.1
    assert (spec.optimizers.dense is None) == (architecture == "factorization_machine")


def with_histories(kind: str) -> pa.Table:
    dice = np.random.default_rng(SEED)
    items = [f"i{each}" for each in dice.integers(0, 50, 4_000)]
    table = {
        "time": [T0_MS + 8_000 * (i // 4) for i in range(4_000)],
        "request_id": [f"r{i // 4}" for i in range(4_000)],
        "item": items,
        "place": [f"p{i // 4 % 30}" for i in range(4_000)],
        "clicked": (dice.random(4_000) < 0.1).tolist(),
    }
    if kind == "a column of lists":
        table["seen"] = [items[max(i - 3, 0) : i] for i in range(4_000)]
    elif kind == "clicks of users":
        table["user"] = [f"u{i // 4 % 90}" for i in range(4_000)]
    return pa.table(table)


@pytest.mark.parametrize("architecture", ["din", "sequence"])
@pytest.mark.parametrize(
    ("kind", "history"),
    [("a column of lists", "seen"), ("clicks of users", "recent_clicks"), ("nothing", "")],
)
def test_an_architecture_that_reads_a_history_gets_one_if_the_log_has_it(
    tmp_path: Path, architecture: str, kind: str, history: str
) -> None:
    path = tmp_path / "log.parquet"
    pa.parquet.write_table(with_histories(kind), path)
    layout = guess_layout(path).layout
    if not history:
        with pytest.raises(SpecError, match="expected a user's history"):
            suggest_spec(path, layout, "", architecture)
        return
    spec = parse_spec(suggest_spec(path, layout, "", architecture).text, "suggested.toml")
    assert (spec.structure.history, spec.structure.target) == (history, "item")


def requests_of(candidates: int, clicks: Callable[[np.random.Generator], Any]) -> pa.Table:
    """Rows of 2,000 requests; clicks: which candidates of a request are clicked."""
    dice, rows = np.random.default_rng(SEED), []
    for request in range(2_000):
        clicked = set(clicks(dice))
        for k in range(candidates):
            shown_ms = T0_MS + 2_000 * request
            row = {"time": shown_ms, "request_id": f"r{request}", "item": f"i{dice.integers(40)}"}
            rows.append(row | {"clicked_at": shown_ms + 4_000 if k in clicked else None})
    return pa.Table.from_pylist(rows)


@pytest.mark.parametrize("kind", ["parquet", "directory"])
@pytest.mark.parametrize(
    ("clicks", "loss"),
    [
        (lambda dice: dice.integers(0, 8, 1), "choice"),
        (lambda dice: np.flatnonzero(dice.random(8) < 0.12), "logistic"),
        (lambda dice: np.flatnonzero(dice.random(8) < 0.005), "logistic"),
    ],
    ids=["one click in each request", "clicks by themselves", "too few clicks to tell"],
)
def test_the_loss_of_a_choice_is_suggested_if_requests_lack_second_clicks(
    tmp_path: Path, kind: str, clicks: Callable[[np.random.Generator], Any], loss: str
) -> None:
    table, path = requests_of(8, clicks), tmp_path
    if kind == "parquet":
        path = tmp_path / "log.parquet"
        pa.parquet.write_table(table, path)
    else:
        write_directory(path, table)
    text, spec = suggested(path)
    assert spec.structure.loss == loss
    said = "# 2,000 requests have 8.0 candidates on average, and 0 of them several clicks."
    assert (said in text) == (loss == "choice")


def write_directory(path: Path, table: pa.Table) -> None:
    shown, clicked = [], []
    for number, row in enumerate(
        table.drop_columns([each for each in table.column_names if each == "view"]).to_pylist()
    ):
        identity = {"impression_id": f"i{number}"}
        click_ms = row.pop("clicked_at")
        shown.append(json.dumps(identity | {"timestamp_ms": row.pop("time")} | row))
        if click_ms is not None:
            clicked.append(json.dumps(identity | {"timestamp_ms": click_ms}))
    (path / "impressions.ndjson").write_text("\n".join(shown))
    (path / "clicks.ndjson").write_text("\n".join(clicked))


def test_a_log_without_clicks_and_with_few_rows_gets_a_spec_that_says_so(tmp_path: Path) -> None:
    path = tmp_path / "few.csv"
    path.write_text("time,user,item\n" + "".join(f"{T0_MS + i},u{i},a\n" for i in range(3)))
    text, spec = suggested(path)
    assert "No impression has a click" in text
    assert spec.fields["user"].transform == "id"
    assert spec.statistics == ()


def test_a_log_in_which_everything_is_clicked_is_refused_with_the_words_of_its_column(
    tmp_path: Path,
) -> None:
    path = tmp_path / "log.csv"
    rows = [f"{T0_MS + i},u{i % 9},{'yes' if i % 4 else 'ja'}" for i in range(400)]
    path.write_text("\n".join(["time,user,label", *rows]) + "\n")
    head = '[event]\ntimestamp = "time"\n[click]\ncolumn = "label"\n'
    with pytest.raises(SpecError, match=r"got a click for all 400: .*yes \(300\), ja"):
        suggest_spec(path, parse_layout(head, "l.toml"))
    assert (
        "100 of them clicked"
        in suggest_spec(path, parse_layout(head + 'values = ["ja"]', "l.toml")).text
    )


@pytest.mark.parametrize(
    ("late_s", "said"),
    [
        (20, ""),
        (7_220, "# warning: No click comes sooner than 2.0 h after its impression: compare the"),
        (-7_180, "# warning: 100 rows are refused, because their click cannot be read or comes"),
    ],
)
def test_click_times_of_another_zone_are_a_warning(tmp_path: Path, late_s: int, said: str) -> None:
    path = tmp_path / "log.csv"
    times = [T0_MS + 60_000 * i for i in range(400)]
    rows = [
        f"{time},u{i % 9},{time + 1000 * (late_s + i % 5) if i % 4 == 0 else ''}"
        for i, time in enumerate(times)
    ]
    path.write_text("\n".join(["time,user,clicked_at", *rows]) + "\n")
    head = '[event]\ntimestamp = "time"\n[click]\ntimestamp = "clicked_at"\n'
    text = suggest_spec(path, parse_layout(head, "l.toml")).text
    assert said in text
    assert text.count("# warning: ") == bool(said)


def test_no_column_tells_the_outcome_of_a_log_that_begins_with_clicks_only(
    tmp_path: Path,
) -> None:
    path = tmp_path / "log.csv"
    rows = [f"{T0_MS + i},u{i % 9},{int(i < 300 or i % 2)}" for i in range(600)]
    path.write_text("\n".join(["time,user,label", *rows]) + "\n")
    text, _ = suggested(path)
    assert "known after a click" not in text
    assert "user = {" in text


def test_a_log_without_rows_or_without_usable_columns_is_refused(tmp_path: Path) -> None:
    for stem in ("impressions", "clicks"):
        (tmp_path / f"{stem}.ndjson").touch()
    with pytest.raises(SpecError, match="expected impressions, got none"):
        suggest_spec(tmp_path)
    shown = {"impression_id": "i", "timestamp_ms": T0_MS, "page": {"id": 1}}
    (tmp_path / "impressions.ndjson").write_text(json.dumps(shown))
    with pytest.raises(SpecError, match="page: nested values, which events cannot have"):
        suggest_spec(tmp_path)


@pytest.mark.parametrize(
    "told",
    [
        lambda clicked: ["yes" if each else "no" for each in clicked],
        lambda clicked: [i % 97 + 3.5 if each else None for i, each in enumerate(clicked)],
        lambda clicked: [i % 97 + 400.5 * each for i, each in enumerate(clicked)],
        lambda clicked: [["paid", "sent"] if each else None for each in clicked],
        lambda clicked: [["view", "click"] if each else ["view"] for each in clicked],
        lambda clicked: [T0_MS + i if each else -1 for i, each in enumerate(clicked)],
        lambda clicked: [f"order-{i // 2}" if each else None for i, each in enumerate(clicked)],
    ],
    ids=[
        *("a second label", "a time of reading, if clicked", "an amount", "a bag, if clicked"),
        *("an item of a bag", "a time or a number for none", "an id, if clicked"),
    ],
)
def test_a_column_that_tells_the_outcome_is_left_out_with_the_reason(
    tmp_path: Path, told: Callable[[list[bool]], list[Any]]
) -> None:
    log = columns()
    log["told"] = told([each is not None for each in log["clicked_at"]])
    path = tmp_path / "log.parquet"
    pa.parquet.write_table(pa.table(log), path)
    text, spec = suggested(path)
    assert "# not used: told: alone it removes " in text
    assert {each.name for each in (*spec.fields.singles, *spec.fields.numbers)} >= {
        "device",
        "section",
        "slot",
    }
    assert "told" not in {each.name for each in (*spec.fields.singles, *spec.fields.numbers)}


@pytest.mark.parametrize("form", ["ms", "iso", "%Y-%m-%d %H:%M:%S"])
def test_times_in_another_unit_than_the_layout_says_are_refused_with_the_right_one(
    tmp_path: Path, form: str
) -> None:
    path = tmp_path / "log.csv"
    path.write_text(
        "at,page,clicked\n" + "".join(f"{1_700_000_000 + i},p{i % 3},{i % 2}\n" for i in range(20))
    )
    layout = parse_layout(
        f'[event]\ntimestamp = "at"\ntimestamp_format = "{form}"\n[click]\ncolumn = "clicked"\n',
        "layout",
    )
    with pytest.raises(SpecError, match=r"20 of 20 rows, .*: write timestamp_format = \"s\""):
        suggest_spec(path, layout)


def test_impressions_wait_for_clicks_that_have_no_times(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    rows = [f"{1_700_000_000 + i},p{i % 3},{int(i % 5 == 0)}\n" for i in range(100)]
    path.write_text("time,page,clicked\n" + "".join(rows))
    text, spec = suggested(path)
    assert "wait_s = 2  # the log has no times of clicks" in text
    assert spec.fields.label.wait_ms == 2000
    path.write_text("time,page,clicked\n" + "".join(each.replace(",1\n", ",0\n") for each in rows))
    assert "wait_s" not in suggested(path)[0]


def test_a_log_that_is_not_sorted_is_suggested_with_a_word_on_its_order(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    rows = [f"{1_700_000_000 + i},p{i % 3},{int(i % 5 == 0)}\n" for i in range(100)]
    for name, order in (("log", rows), ("back", rows[::-1])):
        path = tmp_path / f"{name}.csv"
        path.write_text("time,page,clicked\n" + "".join(order))
        text, _ = suggested(path)
        assert ("99 rows come after a newer one" in text) == (name == "back")
