"""Tests guessed layouts: the columns of a file say which are times, clicks, ids and bags."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from headrace.ingest.features.cells.times import milliseconds_of
from headrace.ingest.features.spec_text import SpecError
from headrace.ingest.logs.decimal_commas import are_decimal_commas
from headrace.ingest.logs.layout import BagLayout, LogLayout, parse_layout
from headrace.ingest.logs.layout_guess import guess_layout
from headrace.ingest.logs.table_log import TableLog
from headrace.ingest.survey.log_survey import survey_log
from headrace.learner.batch.sources import FilePosition
from headrace.learner.batch.table_source import TableSource
from headrace.learner.spec.model_spec import parse_spec
from headrace.learner.suggestion.log_sample import sample_log

ROWS = 40
START = datetime(2026, 1, 5, 8, tzinfo=UTC)
START_MS = int(START.timestamp() * 1000)


def shown_at(i: int) -> datetime:
    return START + timedelta(seconds=10 * (i // 4))


def written(path: Path, header: str, row: str, separator: str = ",") -> Path:
    """A CSV of rows with {i} and {view}, {iso}, {s}, {us}, {clicked}, {clicked_iso} filled in."""
    lines = [header.replace(",", separator)]
    for i in range(ROWS):
        at = shown_at(i)
        clicked = i % 10 == 3
        values = {
            "i": i,
            "view": f"v{i // 4}",
            "iso": f"{at:%Y-%m-%d %H:%M:%S}",
            "zoned": at.isoformat(),
            "german": f"{at:%d.%m.%Y %H:%M:%S}",
            "s": int(at.timestamp()),
            "us": int(at.timestamp()) * 1_000_000,
            "clicked": int(clicked),
            "clicked_iso": f"{at + timedelta(seconds=7):%Y-%m-%d %H:%M:%S}" if clicked else "",
        }
        lines.append(row.format(**values).replace(",", separator))
    path.write_text("\n".join(lines) + "\n")
    return path


def events_by(path: Path, layout: LogLayout) -> list[tuple[bool, dict[str, object]]]:
    return [(line.is_click, json.loads(line.value)) for line in TableLog(path, layout).lines()]


@pytest.mark.parametrize(
    ("header", "row"),
    [
        ("view,time,user,article,clicked_at", "{view},{iso},u{i},a,{clicked_iso}"),
        ("view,time,user,article,clicked", "{view},{zoned},u{i},a,{clicked}"),
        ("view,ts,user,article,label", "{view},{s},u{i},a,{clicked}"),
        ("session_id,event_time,user,article,is_click", "{view},{us},u{i},a,{clicked}"),
        ("view,when,user,article,click", "{view},{german},u{i},a,{clicked}"),
    ],
)
def test_times_clicks_and_requests_are_found_by_name_and_value(
    tmp_path: Path, header: str, row: str
) -> None:
    path = written(tmp_path / "log.csv", header, row)
    guessed = guess_layout(path)
    assert parse_layout(guessed.text, "again.toml") == guessed.layout
    found = events_by(path, guessed.layout)
    shown = [event for is_click, event in found if not is_click]
    assert [event["timestamp_ms"] for event in shown] == [
        int(shown_at(i).timestamp() * 1000) for i in range(ROWS)
    ]
    assert shown[5] == {
        "impression_id": "log-5",
        "request_id": "v1",
        "timestamp_ms": START_MS + 10_000,
        "user": "u5",
        "article": "a",
    }
    assert sum(is_click for is_click, _ in found) == 4


def test_the_rows_of_a_session_are_no_request(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    rows = [f"{START_MS + 60_000 * i},s{i % 4},u{i},0" for i in range(ROWS)]
    path.write_text("time,session,user,click\n" + "\n".join(rows) + "\n")
    guessed = guess_layout(path)
    assert '# "session" is no request_id: the rows of one value are 2,160 s apart' in guessed.text
    assert events_by(path, guessed.layout)[0][1]["session"] == "s0"


def test_a_delimiter_a_unique_id_and_a_bag_are_found(tmp_path: Path) -> None:
    path = written(
        tmp_path / "log.csv", "id,time,user,tags,click", "x{i},{s},u,red|blue,{clicked}", ";"
    )
    guessed = guess_layout(path)
    assert 'delimiter = ";"' in guessed.text
    assert 'impression_id = "id"  # every value is different' in guessed.text
    first = events_by(path, guessed.layout)[0][1]
    assert first["tags"] == ["red", "blue"]
    assert first["impression_id"] == "x0"


def test_parquet_and_ndjson_are_guessed_from_their_types(tmp_path: Path) -> None:
    parquet = tmp_path / "log.parquet"
    columns = {
        "shown": pa.array([shown_at(i) for i in range(ROWS)], pa.timestamp("us", "UTC")),
        "clicked": pa.array([i % 10 == 3 for i in range(ROWS)]),
        "item": [f"a{i % 3}" for i in range(ROWS)],
    }
    pa.parquet.write_table(pa.table(columns), parquet)
    layout = guess_layout(parquet).layout
    assert events_by(parquet, layout)[0][1]["timestamp_ms"] == START_MS
    ndjson = tmp_path / "log.ndjson"
    rows = [{"t": START_MS + i, "item": i, "click": i % 2} for i in range(ROWS)]
    ndjson.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert len(events_by(ndjson, guess_layout(ndjson).layout)) == ROWS + ROWS // 2


def test_a_file_without_times_gets_a_start_and_one_without_clicks_says_so(tmp_path: Path) -> None:
    path = written(tmp_path / "log.csv", "user,price", "u{i},{i}.5")
    guessed = guess_layout(path)
    assert "start = 2025-01-01T00:00:00Z" in guessed.text
    assert "the file has only impressions" in guessed.text
    assert guessed.layout.click is None


def test_all_readers_give_the_rows_of_a_request_one_time_in_a_file_without_times(
    tmp_path: Path,
) -> None:
    path = tmp_path / "log.parquet"
    requests = [None, None, *(f"r{i // 7}" for i in range(60)), "r0", None]
    rows = {
        "request_id": pa.array(requests, pa.string()),
        "item": [i % 3 for i in range(64)],
        "clicked": [int(i % 5 == 0) for i in range(64)],
    }
    pa.parquet.write_table(pa.table(rows), path, row_group_size=5)
    guessed = guess_layout(path)
    begins = [i for i, each in enumerate(requests) if not i or not each or each != requests[i - 1]]
    first = [max(each for each in begins if each <= i) for i in range(64)]
    start_ms = int(datetime(2025, 1, 1, tzinfo=UTC).timestamp() * 1000)
    expected = [start_ms + 10 * each for each in first]
    lines = list(TableLog(path, guessed.layout).lines())
    shown = [each.time_ms for each in lines if not each.is_click]
    clicks = [each.time_ms for each in lines if each.is_click]
    assert shown == expected
    assert clicks == [
        at + 1 for at, clicked in zip(expected, rows["clicked"], strict=True) if clicked
    ]
    spec = parse_spec('[model]\nname = "m"\n[fields.item]\nnumber = 1\ntransform = "id"', "m")
    fitted = TableSource([str(path)], guessed.layout, spec).blocks(FilePosition())
    assert [at for block in fitted for at in block.examples.event_ms.tolist()] == expected
    assert sample_log(path, guessed.layout, 64).times.tolist() == expected
    survey = survey_log(path, spec.fields, guessed.layout)
    assert (survey.first_ms, survey.last_ms) == (expected[0], expected[-1])
    assert not survey.refused


def test_a_list_named_like_a_click_is_a_field(tmp_path: Path) -> None:
    times = [1_700_000_000_000, 1_700_000_000_001]
    columns = {"time": times, "recent_clicks": [["a"], ["b"]], "clicked": [0, 1]}
    path = tmp_path / "log.parquet"
    pa.parquet.write_table(pa.table(columns), path)
    text = guess_layout(path).text
    assert '[click]\ncolumn = "clicked"' in text


def test_columns_that_may_be_clicks_are_listed_with_their_words(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    rows = [
        f"{START_MS + i};u{i};{'web' if i % 2 else 'app'};{'weg' if i % 10 else 'hin'};3,{i % 9}0"
        for i in range(ROWS)
    ]
    path.write_text("time;user;place;geklickt;preis\n" + "\n".join(rows) + "\n")
    guessed = guess_layout(path)
    assert '#   "geklickt": named like a click, weg (36), hin (4)\n' in guessed.text
    assert '#   "place": app (20), web (20)\n' in guessed.text
    assert 'decimal_commas = ["preis"]' in guessed.text
    assert guessed.text.count("preis") == 1, "neither a bag nor a click"
    with pytest.raises(SpecError, match=r"set \[file\] delimiter = .;. in the layout"):
        list(TableLog(path, parse_layout('[event]\ntimestamp = "time"', "l.toml")).lines())


def test_a_second_time_after_the_first_is_that_of_the_click(tmp_path: Path) -> None:
    path = written(tmp_path / "log.csv", "shown_at,user,read_at", "{iso},u{i},{clicked_iso}")
    guessed = guess_layout(path)
    assert guessed.layout.click is not None
    assert guessed.layout.click.timestamp == "read_at"
    assert "have one, after shown_at" in guessed.text


def test_commas_separate_a_bag_only_if_its_items_repeat(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    foods = ["egg", "flour", "milk", "rice", "basil"]
    bags = [f"{a},{b},{c}" for a in foods for b in foods for c in foods]
    titles = [f"Story {i}, as told on day {i}" for i in range(len(bags))]
    rows = [
        f'{i},"{bag}","{title}"' for i, (bag, title) in enumerate(zip(bags, titles, strict=True))
    ]
    path.write_text("n,ingredients,title\n" + "\n".join(rows) + "\n")
    fields = guess_layout(path).layout.fields
    assert fields["ingredients"] == BagLayout("ingredients", ",")
    assert fields["title"] == "title"


def test_a_pattern_of_times_may_end_in_a_fraction_of_the_second() -> None:
    texts = pa.array(["01/03/2024 08:00:01.5", "01/03/2024 08:00:01.123456", "01/03/2024", None])
    times = milliseconds_of(texts, "%d/%m/%Y %H:%M:%S.%f").to_pylist()
    second = 1_709_280_001_000
    assert times == [second + 500, second + 123, None, None]


LOCAL_AND_UTC = [
    ("27.03.2026 09:00:01", datetime(2026, 3, 27, 8, 0, 1, tzinfo=UTC)),
    ("30.03.2026 09:00:01", datetime(2026, 3, 30, 7, 0, 1, tzinfo=UTC)),
    ("29.03.2026 02:30:00", datetime(2026, 3, 29, 1, tzinfo=UTC)),  # clocks skip this hour
    ("25.10.2026 02:30:00", datetime(2026, 10, 25, 0, 30, tzinfo=UTC)),  # and repeat this one
]


@pytest.mark.parametrize("kind", ["pattern", "fraction", "iso", "timestamps"])
def test_times_without_a_zone_are_read_in_the_zone_of_the_layout(kind: str) -> None:
    pattern = "%d.%m.%Y %H:%M:%S"
    moments = [datetime.strptime(text, pattern) for text, _ in LOCAL_AND_UTC]
    column, form = {
        "pattern": (pa.array([text for text, _ in LOCAL_AND_UTC]), pattern),
        "fraction": (pa.array([f"{text}.000" for text, _ in LOCAL_AND_UTC]), f"{pattern}.%f"),
        "iso": (pa.array([each.isoformat() for each in moments]), "iso"),
        "timestamps": (pa.array(moments, pa.timestamp("us")), "ms"),
    }[kind]
    expected = [int(at.timestamp() * 1000) for _, at in LOCAL_AND_UTC]
    assert milliseconds_of(column, form, "Europe/Berlin").to_pylist() == expected


def test_a_time_that_names_its_zone_keeps_it() -> None:
    texts = pa.array(["2026-03-27T08:00:01Z", "2026-03-27T10:00:01+02:00"])
    zoned = texts.cast(pa.timestamp("ms", "UTC"))
    moment = int(datetime(2026, 3, 27, 8, 0, 1, tzinfo=UTC).timestamp() * 1000)
    assert milliseconds_of(texts, "iso", "Europe/Berlin").to_pylist() == [moment, moment]
    assert milliseconds_of(zoned, "ms", "Europe/Berlin").to_pylist() == [moment, moment]


@pytest.mark.parametrize("column", ["opened", "recipe_opened", "Applied", "booked"])
@pytest.mark.parametrize("page", ["page", "page_id", "page_load_id", "pageview_id"])
def test_words_of_other_sites_than_news_name_impressions_clicks_and_page_views(
    tmp_path: Path, column: str, page: str
) -> None:
    header = f"{page},exposure_id,at,item,{column}"
    row = "{view},{i},{iso},i{i},{clicked}"
    layout = guess_layout(written(tmp_path / "log.csv", header, row)).layout
    assert layout.event.impression_id == "exposure_id"
    assert layout.event.request_id == page
    assert layout.click is not None
    assert layout.click.column == column


def test_a_zone_beside_numbers_in_the_default_format_is_refused(tmp_path: Path) -> None:
    layout = parse_layout('[event]\ntimestamp = "at"\ntime_zone = "Europe/Berlin"', "l.toml")
    path = tmp_path / "log.csv"
    path.write_text(f"at,user\n{START_MS},u\n")
    with pytest.raises(SpecError, match=r"beside time_zone = 'Europe/Berlin'.*remove time_zone"):
        list(TableLog(path, layout).lines())
    table = pa.table({"at": pa.array([START.replace(tzinfo=None)], pa.timestamp("us"))})
    pa.parquet.write_table(table, tmp_path / "log.parquet")
    [line] = TableLog(tmp_path / "log.parquet", layout).lines()
    assert line.time_ms == START_MS - 3_600_000


@pytest.mark.parametrize(
    ("time", "noted"), [("{german}", True), ("{zoned}", False), ("{s}", False)]
)
def test_a_guess_says_that_times_without_a_zone_count_as_utc(
    tmp_path: Path, time: str, noted: bool
) -> None:
    path = written(tmp_path / "log.csv", "at,item", f"{time},i{{i}}")
    assert ("count as UTC" in guess_layout(path).text) is noted


@pytest.mark.parametrize(
    ("first", "found"),
    [
        ("1700000005,u1,p3,0", "'1700000005' for column 1"),
        ("2026-11-23 10:00,u1,p3,0", "'2026-11-23 10:00' for column 1"),
        ("u1,,p3,0", "'0' for column 4"),
        ("u1,p3,3.5,x", "'3.5' for column 3"),
        ("u1,,,1.5", "'1.5' for column 4"),
        ("u1,u1,3.5,x", "'3.5' for column 3"),
    ],
)
def test_a_first_line_that_looks_like_a_row_is_refused_with_the_lines_that_name_columns(
    tmp_path: Path, first: str, found: str
) -> None:
    path = tmp_path / "log.csv"
    path.write_text(f"{first}\n{first}\n")
    with pytest.raises(
        SpecError, match=f"names of columns in the first line, got {found}"
    ) as error:
        guess_layout(path)
    _, _, text = str(error.value).partition("add --layout layout.toml:\n\n")
    assert '[file]\ncolumns = ["column_1", "column_2", "column_3", "column_4"]\n' in text
    named = parse_layout(text, "layout.toml")
    assert sum(1 for line in TableLog(path, named).lines() if line.time_ms) == 2


def test_a_layout_for_a_file_without_a_header_is_refused_with_the_key_that_names_columns(
    tmp_path: Path,
) -> None:
    path = tmp_path / "log.csv"
    path.write_text("1700000005000,u1,p3\n")
    said = r"got 'time' .*'1700000005000' looks like a value\. If the file has no header"
    with pytest.raises(SpecError, match=said):
        list(TableLog(path, parse_layout('[event]\ntimestamp = "time"', "layout")).lines())


@pytest.mark.parametrize(
    ("values", "decimal"),
    [
        (["3,5", "3", "-0,25", "1.234,5"], True),
        (["3,500", "1,250"], False),  # perhaps thousands
        (["3,5", "none"], False),
        (["1", "2", "3", "4,5"], False),  # perhaps a bag
        (["3.5", "4"], False),
    ],
)
def test_a_column_has_decimal_commas_only_without_doubt(values: list[str], decimal: bool) -> None:
    assert are_decimal_commas(pa.array([*values, None])) is decimal


def test_decimal_commas_of_a_column_that_is_missing_are_refused() -> None:
    wrong = parse_layout('[file]\ndecimal_commas = ["preis"]\n[event]\ntimestamp = "time"', "l")
    with pytest.raises(
        SpecError, match=r"got 'preis' \(\[file\] decimal_commas\[0\] of the layout"
    ):
        wrong.columns(["time", "price"])


def test_columns_numbered_from_zero_are_names(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("0,1\na,b\n")
    assert guess_layout(path).layout.event.start is not None


@pytest.mark.parametrize("rows", [2, 5_000])
def test_rows_of_another_width_than_the_names_are_refused(tmp_path: Path, rows: int) -> None:
    path = tmp_path / "log.csv"
    path.write_text("1700000005,u1,p3\n" * rows)
    names = '[file]\ncolumns = ["at", "user", "page", "more"]\n[event]\ntimestamp = "at"\n'
    log = TableLog(path, parse_layout(names, "layout"))
    said = r"expected 4 columns in each line, as the layout names in \[file\] columns, got 3"
    with pytest.raises(SpecError, match=said):
        list(log.blocks())
