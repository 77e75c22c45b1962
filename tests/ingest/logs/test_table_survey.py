"""Surveys of tables report what the events made of their rows would be refused for."""

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from headrace.ingest.events.contract import Reason
from headrace.ingest.features.spec_text import SpecError
from headrace.ingest.logs.layout import parse_layout
from headrace.ingest.logs.table_log import TableLog
from headrace.ingest.survey.log_survey import survey_log
from tests.ingest.logs.surveyed_events import (
    COUNT,
    FIELDS,
    NOW_MS,
    T0_MS,
    WINDOW_MS,
    click,
    impression,
    surveyed,
    without,
)

LABELLED = '[event]\ntimestamp = "time"\n[click]\ncolumn = "label"'
BY_LABEL = parse_layout(LABELLED, "l.toml")
LAYOUT_OF_TIMES = parse_layout('[event]\ntimestamp = "time"', "l.toml")
LAYOUT = parse_layout('[event]\ntimestamp = "time"\n[click]\ntimestamp = "clicked"', "l.toml")


def table(count: int = COUNT) -> dict[str, list[Any]]:
    return {
        "time": [T0_MS + 1000 * i for i in range(count)],
        "user": [f"u{i % 7}" for i in range(count)],
        "category": ["news"] * count,
        "position": [i % 5 for i in range(count)],
        "price": [2.5] * count,
        "topics": [["a"]] * count,
        "clicked": [T0_MS + 1000 * i + 9 if i % 10 == 0 else None for i in range(count)],
    }


def test_a_table_is_surveyed_like_the_events_it_becomes(tmp_path: Path) -> None:
    path = tmp_path / "log.parquet"
    pa.parquet.write_table(pa.table(table()), path)
    found = survey_log(path, FIELDS, LAYOUT, now_ms=NOW_MS)
    assert found.warnings() == []
    assert (found.impressions, found.clicks, found.joined.matched) == (COUNT, 20, 20)
    broken = table()
    broken["position"] = ["pos 3"] * COUNT
    broken["topics"] = ["a|b"] * COUNT
    broken["categry"] = broken.pop("category")
    broken["time"][5] = None
    broken["time"][6] = 1_700_000_006
    broken["clicked"][0] = T0_MS + WINDOW_MS + 1
    pa.parquet.write_table(pa.table(broken), path)
    warnings = survey_log(path, FIELDS, LAYOUT, now_ms=NOW_MS).warnings()
    text = "\n".join(warnings)
    assert f"1 of 220 events (0.5 %) is refused: {Reason.NO_TIME}" in text
    assert "log.parquet, row 6: time=None" in text
    assert "1700000006 looks like seconds" in text
    assert "198 values are not a number and count as absent, such as 'pos 3'" in text
    assert "got only single values, such as 'a|b'" in text
    assert 'Did you mean "categry"?' in text
    assert "1 of 20 clicks comes more than 60 seconds" in text


NAMES, GOOD = "time,user,clicked", f"{T0_MS},u,"

REFUSED: dict[str, tuple[list[str], str, tuple[Reason, int, int], list[str]]] = {
    # the lines of a file and its timestamp_format; then the reason, the number of refusals and the
    # line of the first, and words of the details
    "a line with more columns": (
        *([NAMES, GOOD, f"{T0_MS},u,,,5", GOOD], "ms", (Reason.NOT_JSON, 1, 3)),
        [
            f"expected 3 columns, as the header names, got 5\n  first: {{place}}: {T0_MS},u,,,5\n",
            "Complete the line, or quote a value that contains the delimiter",
        ],
    ),
    "a line with fewer columns": (
        *([NAMES, GOOD, f"{T0_MS},u", GOOD], "ms", (Reason.NOT_JSON, 1, 3)),
        ["expected 3 columns, as the header names, got 2\n"],
    ),
    "a row of several lines": (
        *([NAMES, f'{T0_MS},"u\n\nv",', f'{T0_MS},"u\nv",,1', GOOD], "ms", (Reason.NOT_JSON, 1, 5)),
        [f'{T0_MS},"u\\nv",,1\n', "Complete the row, or close the quotes of a value in it"],
    ),
    "an impression that comes too late": (
        *([NAMES, "", f"{T0_MS + 10**6},u,", f"{T0_MS},old,"], "ms", (Reason.TOO_LATE, 1, 4)),
        ["old"],
    ),
    "times in another form": (
        [NAMES, *["2024-03-01T08:00:01.151,u,"] * 4],
        *("%Y-%m-%d %H:%M:%S", (Reason.NO_TIME, 4, 2)),
        ["got '2024-03-01T08:00:01.151' in the column 'time'", 'Set timestamp_format = "iso" in'],
    ),
    "times in another unit": (
        *([NAMES, "1709280001000,u,"], "s", (Reason.AHEAD, 1, 2)),
        ['in a layout timestamp_format = "ms"'],
    ),
    "times in no known form": (
        *([NAMES, "1 March 2024,u,"], "iso", (Reason.NO_TIME, 1, 2)),
        ["got '1 March 2024'", "Correct timestamp_format in the layout, or the file"],
    ),
    "no times": (
        *([NAMES, '"",u,'], "iso", (Reason.NO_TIME, 1, 2)),
        ["the column 'time' is empty there"],
    ),
    "times of clicks in another form": (
        [NAMES, f"{T0_MS},u,2024-03-01T08:00:04", f"{T0_MS},u,", f"{T0_MS},u,soon"],
        *("ms", (Reason.NO_TIME, 2, 2)),
        [
            "expected the times of an impression and its click",
            "got '2024-03-01T08:00:04' in the column 'clicked'",
        ],
    ),
    "words in place of times of clicks": (
        *([NAMES, f"{T0_MS},u,no", f"{T0_MS},u,yes"], "ms", (Reason.NO_TIME, 1, 3)),
        [
            (
                "got 'yes' in the column 'clicked'. If it says whether there was a click, write "
                'column = "clicked" in [click]'
            )
        ],
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_row_is_reported_with_its_line_its_fault_and_a_remedy(
    tmp_path: Path, name: str
) -> None:
    lines, form, (reason, count, line), words = REFUSED[name]
    path = tmp_path / "log.csv"
    path.write_text("\n".join([*lines, ""]))
    text = f'[event]\ntimestamp = "time"\ntimestamp_format = "{form}"\n[click]\n'
    found = survey_log(path, FIELDS, parse_layout(f'{text}timestamp = "clicked"', "l.toml"))
    [refused] = found.refused
    place = f"{path}, line {line}"
    assert (refused.reason, refused.count, refused.place) == (reason, count, place)
    for each in words:
        assert each.replace("{place}", place) in refused.details
    warnings = "\n".join(found.warnings())
    assert f" refused: {refused.details}" in warnings


def with_faults(kind: str) -> tuple[str, int, int]:
    """Return a file with a line that is no row and a row without a time, and both lines."""
    good, bad, late = f"{T0_MS},u,", "1,2,3,4", ",u,"
    if kind == "ndjson":
        good, bad, late = f'{{"time": {T0_MS}, "user": "u"}}', "no row", '{"user": "late"}'
    lines = ["time,user,clicked"] if kind == "csv" else []
    lines += [good, "", good, bad, "", *[good] * 20_000, "", late, good]
    return "\n".join(lines), lines.index(bad) + 1, lines.index(late) + 1


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
@pytest.mark.parametrize("name", ["log.csv", "log.csv.gz", "log.ndjson"])
def test_refused_lines_are_named_by_their_number_in_the_file(
    tmp_path: Path, name: str, ending: str
) -> None:
    path = tmp_path / name
    text, odd, late = with_faults(name.split(".")[1])
    data = text.replace("\n", ending).encode()
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    found = survey_log(path, FIELDS, LAYOUT, now_ms=NOW_MS)
    places = {each.reason: each.place for each in found.refused}
    assert places == {
        Reason.NOT_JSON: f"{path}, line {odd}",
        Reason.NO_TIME: f"{path}, line {late}",
    }


def test_lines_of_a_directory_are_named_by_their_number_in_the_file(tmp_path: Path) -> None:
    lines = [json.dumps(impression(i)) for i in range(3)]
    text = "\n\n" + "\n\n".join([*lines, "no event"])
    (tmp_path / "impressions.ndjson").write_text(text)
    (tmp_path / "clicks.ndjson").touch()
    [refused] = survey_log(tmp_path, FIELDS, now_ms=NOW_MS).refused
    assert refused.place == f"{tmp_path / 'impressions.ndjson'}, line 9"


def test_a_decimal_comma_is_reported_with_the_key_of_the_layout_that_reads_it(
    tmp_path: Path,
) -> None:
    path = tmp_path / "log.csv"
    path.write_text("time;user;preis\n" + "".join(f"{T0_MS + i};u;3,{i}\n" for i in range(9)))
    text = '[file]\ndelimiter = ";"\n[event]\ntimestamp = "time"\n[fields]\nprice = "preis"'
    found = survey_log(path, FIELDS, parse_layout(text, "l.toml"), now_ms=NOW_MS)
    [warning] = [each for each in found.warnings() if "not a number" in each]
    assert warning == (
        "field price (column 'preis'): 9 values are not a number and count as absent, such as "
        """'3,0'. For decimal commas, write decimal_commas = ["preis"] in the layout, [file]"""
    )
    read = parse_layout(text.replace("[file]", '[file]\ndecimal_commas = ["preis"]'), "l.toml")
    found = survey_log(path, FIELDS, read, now_ms=NOW_MS)
    assert not [each for each in found.warnings() if "not a number" in each]


@pytest.mark.parametrize(
    ("texts", "reported"),
    [
        pytest.param(["2.50", "3.25"], True, id="two decimal places"),
        pytest.param(["2.0", "3.25"], True, id="a zero alone behind the point"),
        pytest.param(["1.1", "1.10"], False, id="versions"),
        pytest.param(["2.5", "3.25"], False, id="no zero at the end"),
        pytest.param(["2.50", "new"], False, id="a word among them"),
    ],
)
def test_texts_that_differ_from_the_numbers_of_requests_are_reported(
    tmp_path: Path, texts: list[str], reported: bool
) -> None:
    path = tmp_path / "log.csv"
    path.write_text("time,user\n" + "".join(f"{T0_MS + i},{texts[i % 2]}\n" for i in range(8)))
    found = survey_log(path, FIELDS, LAYOUT_OF_TIMES, now_ms=NOW_MS).warnings()
    said = f"field user: all values are texts such as '{texts[0]}'"
    assert any(each.startswith(said) for each in found) == reported


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        pytest.param(
            ["4.90", "1,234.50"],
            "4 values are texts of numbers, such as '1,234.50'. Requests send 1234.5 for 1,234.50. "
            "Remove the commas between thousands from the file",
            id="commas between thousands",
        ),
        pytest.param(
            ["4,90", "1.234,50"],
            "4 values are texts of numbers, such as '1.234,50'. Requests send 1234.5 for 1,234.50. "
            'For decimal commas, write decimal_commas = ["user"] in the layout, [file]',
            id="points between thousands",
        ),
        pytest.param(["1,234", "1.234"], "", id="ids or numbers"),
        pytest.param(["10,20.5", "1,2345.5"], "", id="other lists"),
    ],
)
def test_ids_that_are_numbers_with_separated_thousands_are_reported(
    tmp_path: Path, texts: list[str], said: str
) -> None:
    path = tmp_path / "log.csv"
    path.write_text("time;user\n" + "".join(f"{T0_MS + i};{texts[i % 2]}\n" for i in range(8)))
    layout = parse_layout('[file]\ndelimiter = ";"\n[event]\ntimestamp = "time"', "l.toml")
    found = survey_log(path, FIELDS, layout, now_ms=NOW_MS).warnings()
    assert [each for each in found if each.startswith("field user")] == (
        [f"field user: {said}"] if said else []
    )


def test_local_times_that_are_in_the_future_are_reported(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text(f"time,user\n{T0_MS},u\n{NOW_MS + 7_200_000},u\n")
    ahead = "the newest time is 2 hours in the future. If times are local, write their time_zone"
    for now_ms, said in ((NOW_MS, True), (NOW_MS + 7_000_000, False)):
        found = survey_log(path, FIELDS, LAYOUT_OF_TIMES, now_ms=now_ms).warnings()
        assert any(each.startswith(ahead) for each in found) == said


def test_a_number_with_commas_between_thousands_needs_a_change_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text(f'time,price\n{T0_MS},"1,234.50"\n{T0_MS},9.90\n')
    found = survey_log(path, FIELDS, LAYOUT_OF_TIMES, now_ms=NOW_MS).warnings()
    [warning] = [each for each in found if "not a number" in each]
    assert warning.endswith("'1,234.50'. Remove the commas between thousands from the file")


@pytest.mark.parametrize("kind", ["csv", "parquet", "ndjson"])
def test_an_empty_text_is_absent_in_every_format(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"log.{kind}"
    table = pa.table({"time": [T0_MS] * 4, "user": ["", "a", "", "b"], "clicked": [None] * 4})
    if kind == "csv":
        pyarrow.csv.write_csv(table, path)
    elif kind == "parquet":
        pa.parquet.write_table(table, path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))
    [user] = [each for each in survey_log(path, FIELDS, LAYOUT).fields if each.name == "user"]
    assert user.present == 2
    events = [json.loads(line.value) for line in TableLog(path, LAYOUT).lines()]
    assert [event.get("user") for event in events] == [None, "a", None, "b"]


def test_a_word_that_may_mean_either_is_refused_with_the_words_and_the_key_that_names_them(
    tmp_path: Path,
) -> None:
    path = tmp_path / "log.csv"
    path.write_text(f"time,user,label\n{T0_MS},u,gesehen\n{T0_MS},u,\n{T0_MS},u,gekauft\n")
    with pytest.raises(SpecError) as refused:
        survey_log(path, FIELDS, BY_LABEL, now_ms=NOW_MS)
    assert str(refused.value).startswith(f"{path}, line 2: expected a click or none")
    assert "with the values gesehen (1), empty (1), gekauft (1)" in str(refused.value)
    any_text = parse_layout(f'{LABELLED}\nvalues = ["*"]', "l.toml")
    assert survey_log(path, FIELDS, any_text, now_ms=NOW_MS).clicks == 2


@pytest.mark.parametrize(
    ("labels", "says"),
    [
        (["0", "0", "0"], "expected clicks, got none in 3 impressions"),
        (
            ["ja", "yes", "yes"],
            "got a click for all 3: the column 'label' has the values yes (2), ja (1)",
        ),
    ],
)
def test_labels_that_are_all_the_same_are_reported(
    tmp_path: Path, labels: list[str], says: str
) -> None:
    path = tmp_path / "log.csv"
    rows = [f"{T0_MS + i},u{i},{label}\n" for i, label in enumerate(labels)]
    path.write_text("time,user,label\n" + "".join(rows))
    found = survey_log(path, FIELDS, BY_LABEL, now_ms=NOW_MS)
    assert any(says in each for each in found.warnings())
    assert found.unusable == (found.clicks > 0)


def test_a_shuffled_table_is_not_said_to_have_a_click_for_every_impression(
    tmp_path: Path,
) -> None:
    path = tmp_path / "log.csv"
    newest = T0_MS + 10 * WINDOW_MS
    rows = [f"{newest if i == 0 else T0_MS + i},u{i},{i % 2}\n" for i in range(20)]
    path.write_text("time,user,label\n" + "".join(rows))
    found = survey_log(path, FIELDS, BY_LABEL, now_ms=NOW_MS)
    assert (found.accepted, found.clicks, found.joined.matched) == (1, 10, 0)
    assert "19 of 20 impressions come after a newer one" in found.warnings()[0]
    assert not any("a click for all" in each for each in found.warnings())


def test_a_log_with_most_impressions_refused_is_unusable_though_its_clicks_are_not(
    tmp_path: Path,
) -> None:
    clicks = [click(i) for i in range(COUNT)]
    found = surveyed(
        tmp_path,
        lambda e: e if e["timestamp_ms"] < T0_MS + 60_000 else without(e, "timestamp_ms"),
        clicks,
    )
    assert 2 * found.refused_count < found.impressions + found.clicks
    assert 2 * found.accepted < found.impressions
    assert found.unusable
