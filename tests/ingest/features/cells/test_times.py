"""Times are read in the forms that programs write, and never invented."""

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

from headrace.ingest.features.cells.time_forms import form_of, guess_time_format
from headrace.ingest.features.cells.times import joined_times, milliseconds_of

AT = datetime(2026, 3, 1, 20, 5, tzinfo=UTC)
AT_MS = int(AT.timestamp() * 1000)


@pytest.mark.parametrize(
    ("text", "more_ms"),
    [
        ("2026-03-01 20:05:00.000001 UTC", 0),
        ("2026-03-01 20:05:07.5 UTC", 7_500),
        ("2026-03-01 20:05:00 UTC", 0),
        ("2026-03-01 20:05:00,123", 123),
        ("2026-03-01T20:05:00.123456789Z", 123),
        ("2026-03-01T21:05:00+01:00", 0),
        ("2026-03-01 14:35:00 -0530", 0),
        ("2026-03-01 21:05:00+01", 0),
        ("2026-03-01 20:05", 0),
        (" 2026-03-01 20:05:00 ", 0),
    ],
)
def test_forms_near_iso_are_read_alone_and_beside_others(text: str, more_ms: int) -> None:
    for others in ([], ["2026-03-01 20:05:00"], ["x", None]):
        column = pa.array([text, *others], pa.string())
        assert milliseconds_of(column, "iso")[0].as_py() == AT_MS + more_ms


@pytest.mark.parametrize(
    ("pattern", "form"),
    [
        ("%m/%d/%Y %H:%M", "%m/%d/%Y %H:%M"),
        ("%m/%d/%Y %I:%M:%S %p", "%m/%d/%Y %I:%M:%S %p"),
        ("%d/%m/%Y %H:%M:%S", "%d/%m/%Y %H:%M:%S"),
        ("%d.%m.%Y %H:%M", "%d.%m.%Y %H:%M"),
        ("%d/%b/%Y:%H:%M:%S +0000", "%d/%b/%Y:%H:%M:%S %z"),
        ("%a, %d %b %Y %H:%M:%S GMT", "%a, %d %b %Y %H:%M:%S GMT"),
        ("%Y%m%d%H%M%S", "%Y%m%d%H%M%S"),
        ("%Y-%m-%d %H:%M:%S,%f", "iso"),
        ("%Y-%m-%d %H:%M:%S.%f UTC", "iso"),
    ],
)
def test_a_format_is_found_by_its_times(pattern: str, form: str) -> None:
    moments = [AT + timedelta(hours=7 * i) for i in range(60)]
    column = pa.array([f"{each:{pattern}}" for each in moments])
    assert form_of(column) == (form, "")
    found = milliseconds_of(column, form).to_pylist()
    assert found == [int(each.timestamp() * 1000) for each in moments]


@pytest.mark.parametrize(
    ("form", "good", "bad"),
    [
        ("%Y-%m-%d %H:%M:%S", "2025-03-02 00:00:00", "2025-02-30 00:00:00"),
        ("%d/%m/%Y", "01/05/2025", "31/04/2025"),
        ("%m/%d/%Y %I:%M %p", "3/1/2025 12:00 AM", "2/29/2025 12:00 AM"),
        ("%Y%m%d", "20250302", "20250230"),
        ("%d/%b/%Y:%H:%M:%S %z", "02/Mar/2025:01:00:00 +0100", "30/Feb/2025:01:00:00 +0100"),
        ("iso", "2025-03-02", "2025-02-30"),
    ],
)
def test_a_date_that_does_not_exist_is_no_time(form: str, good: str, bad: str) -> None:
    found = milliseconds_of(pa.array([good, bad, None]), form)
    assert found.is_valid().to_pylist() == [True, False, False]
    assert found[0].as_py() % 86_400_000 == 0


def test_day_and_month_are_decided_by_order_and_gaps_or_are_ambiguous() -> None:
    days = [f"03/{day:02}/2026 08:00:00" for day in range(1, 12)]
    assert form_of(pa.array(days)) == ("%m/%d/%Y %H:%M:%S", "")
    turned = [f"{day:02}/03/2026 08:00:00" for day in range(1, 12)]
    assert form_of(pa.array(turned)) == ("%d/%m/%Y %H:%M:%S", "")
    one_day = pa.array(["03/04/2026 08:00:00", "03/04/2026 08:00:07"])
    assert form_of(one_day) == ("%d/%m/%Y %H:%M:%S", "%m/%d/%Y %H:%M:%S")
    assert form_of(pa.array(["03/03/2026 08:00:00"])) == ("%d/%m/%Y %H:%M:%S", "")


def test_integers_of_digits_are_times() -> None:
    assert guess_time_format(pa.array([26030108, 26030109])) == "%y%m%d%H"
    assert guess_time_format(pa.array([20260301, 20260302])) == "%Y%m%d"
    assert guess_time_format(pa.array([0, 7, 14])) is None


@pytest.mark.parametrize("unit", ["s", "ms", "us"])
def test_open_ended_dates_are_values(unit: str) -> None:
    cells = [datetime(9999, 12, 31), datetime(1, 1, 1), None, datetime(2026, 3, 1, 20, 5)]
    found = milliseconds_of(pa.array(cells, pa.timestamp(unit)), "ms").to_pylist()
    assert found == [253_402_214_400_000, -62_135_596_800_000, None, AT_MS]
    texts = pa.array(["9999-12-31", "0001-01-01", None, "2026-03-01 20:05"])
    assert milliseconds_of(texts, "iso").to_pylist() == found


def test_a_date_and_a_time_of_day_make_one_time() -> None:
    days = pa.array([AT.date(), None])
    clock = pa.array(["20:05:00", "20:05:00"])
    assert milliseconds_of(joined_times([days, clock]), "iso").to_pylist() == [AT_MS, None]
    midnight = pa.array([datetime(2026, 3, 1)], pa.timestamp("ns"))
    typed = pa.array([AT.time()], pa.time64("us"))
    assert milliseconds_of(joined_times([midnight, typed]), "iso").to_pylist() == [AT_MS]
