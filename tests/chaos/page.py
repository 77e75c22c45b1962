"""Draws a run as one page of HTML that needs no other file: figures, timeline, memory.

The pictures are SVG, written here. Every series is reduced to as many points as the picture has
columns; of each column the extremes are kept, because a spike is what a reader looks for.
"""

import html
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from tests.chaos.accounting import MOST_GROWTH_MB, MOST_SLOPE_MB_H, quantile_ms
from tests.chaos.record import Run
from tests.chaos.servers import BROKER_MB

WIDTH, LEFT, RIGHT = 1080, 64, 12
_COLUMNS = 500
_WINDOW_S = 5.0
"""Delays of clicks are summed over so much time for one point."""


class Series(NamedTuple):
    """A line of a picture."""

    name: str
    points: Sequence[tuple[float, float]]
    """Seconds and values; NaN ends a piece of the line."""


def as_page(run: Run) -> str:
    """Return the page."""
    verdict = "no violation" if not run.violations else f"{len(run.violations)} violations"
    body = [
        f"<h1>Chaos: {run.seconds / 60:.0f} minutes, {len(run.episodes)} steps, {verdict}</h1>",
        _intro(run),
        *_violations(run),
        _counts(run),
        "<h2>Timeline</h2>",
        *_timeline(run),
        "<h2>Faults</h2>",
        _kinds(run),
        "<h2>Memory of every process</h2>",
        _MEMORY,
        *_memory(run),
        "<h2>Not done on this machine</h2>",
        _list(run.skipped),
    ]
    return f"{_HEAD}{''.join(body)}</main></body></html>\n"


# -------------------------------------------------------------------- sections


def _intro(run: Run) -> str:
    sent = run.events / max(run.seconds, 1.0)
    return (
        f"<p>Seed {run.seed}, {run.rate:,.0f} events/s asked, {sent:,.0f} events/s sent. "
        f"{html.escape(run.machine)}. Three Kafka brokers (replication 3, two in sync), a Valkey "
        "Cluster of 3+3 and every part of headrace on this machine. A band is a fault, from its "
        "begin until the answers were fresh again. Point at a band to read which fault it was.</p>"
    )


def _violations(run: Run) -> list[str]:
    return ["<h2>Violations</h2>", _list(run.violations)] if run.violations else []


def _counts(run: Run) -> str:
    counted = run.counted
    if counted is None:
        return "<p>The run did not reach its count.</p>"
    shows = sorted(set(counted.shows_by_field.values()))
    clicks = sorted(set(counted.clicks_by_field.values()))
    calm, fault = run.calm_and_fault()
    fields = len(counted.shows_by_field)
    rows = [
        ("impressions sent", f"{counted.impressions:,}"),
        ("impressions in Kafka, each once", f"{counted.impressions_in_kafka:,}"),
        (f"impressions in the rows of each of {fields} fields", _several(shows)),
        ("clicks sent", f"{counted.clicks:,}"),
        ("clicks in Kafka, each once", f"{counted.clicks_in_kafka:,}"),
        ("late clicks", f"{counted.late_clicks:,}"),
        (f"clicks in the rows of each of {fields} fields", _several(clicks)),
        ("freshness in calm, p50 and p99", _both(calm.p50_ms, calm.p99_ms)),
        ("freshness in fault, p50 and p99", _both(fault.p50_ms, fault.p99_ms)),
        ("ranking requests: asked, answered", _requests(run)),
        ("restarts by the supervisors", _named(run.restarts)),
    ]
    return _table(("count", "figure"), rows)


def _kinds(run: Run) -> str:
    rows = [
        (
            kind.name,
            f"{kind.times}",
            _both(kind.freshness.p50_ms, kind.freshness.p99_ms),
            seconds(kind.oldest_s),
            seconds(kind.longest_s) + (f", {kind.never_fresh} never" if kind.never_fresh else ""),
        )
        for kind in run.by_kind()
    ]
    head = ("fault", "times", "freshness p50, p99", "oldest answer", "fresh again after (longest)")
    return _table(head, rows)


def _timeline(run: Run) -> list[str]:
    ages = [(m.at_s, m.age_s) for m in run.moments]
    waits = [(m.at_s, math.nan if m.backlog is None else m.backlog) for m in run.moments]
    accuracy = run.windows
    return [
        _picture(run, "age of the stalest answer, seconds", [Series("age", ages)], log=True),
        _picture(run, "click to answer, milliseconds", _delays(run), log=True),
        _picture(
            run,
            "AUC of the answers, and of the true probabilities",
            [
                Series("served", [(w.begin_s, w.served) for w in accuracy]),
                Series("best possible", [(w.begin_s, w.truth) for w in accuracy]),
            ],
        ),
        _picture(run, "events sent per second", [Series("sent", _rates(run))], zero=True),
        _picture(run, "events that wait for the joiner", [Series("waiting", waits)], zero=True),
    ]


def _memory(run: Run) -> list[str]:
    pictures = []
    for each in run.growths:
        weighed = [(at_s, mb) for at_s, _, mb in run.memory[each.name]]
        slope = (
            "lives too short for a slope"
            if each.slope_mb_h is None
            else (f"steepest life {each.slope_mb_h:+.0f} MB/h over {each.grown_mb:+.0f} MB")
        )
        title = f"{each.name}: {each.lives} lives, {each.most_mb:.0f} MB at most, {slope}"
        pictures.append(
            _picture(run, title, [Series("MB", weighed)], zero=True, height=90, columns=150)
        )
    return pictures


# -------------------------------------------------------------------- series


def _delays(run: Run) -> list[Series]:
    windows: dict[int, dict[float, float]] = {}
    for moment in run.moments:
        total = windows.setdefault(int(moment.at_s // _WINDOW_S), {})
        for bound, count in moment.delays.items():
            total[bound] = total.get(bound, 0.0) + count
    series = []
    for name, share in (("p50", 0.5), ("p99", 0.99)):
        points = [
            (number * _WINDOW_S, quantile_ms(total, share) or math.nan)
            for number, total in sorted(windows.items())
        ]
        series.append(Series(name, [(at, v if math.isfinite(v) else math.nan) for at, v in points]))
    return series


def _rates(run: Run) -> list[tuple[float, float]]:
    kept = run.moments[:: max(1, round(_WINDOW_S / 0.5))]
    return [(b.at_s, (b.sent - a.sent) / (b.at_s - a.at_s)) for a, b in pairwise(kept)]


def reduced(points: Sequence[tuple[float, float]], columns: int) -> list[tuple[float, float]]:
    """Return the least and the greatest point of each column; a NaN separates pieces."""
    if len(points) <= 2 * columns:
        return list(points)
    size = len(points) / columns
    kept: list[tuple[float, float]] = []
    for column in range(columns):
        part = points[int(column * size) : int((column + 1) * size)]
        known = [point for point in part if not math.isnan(point[1])]
        if known:
            kept += sorted({min(known, key=lambda p: p[1]), max(known, key=lambda p: p[1])})
        elif kept and not math.isnan(kept[-1][1]):
            kept.append((part[0][0], math.nan))
    return kept


# -------------------------------------------------------------------- pictures


def _picture(
    run: Run,
    title: str,
    series: Sequence[Series],
    *,
    log: bool = False,
    zero: bool = False,
    height: int = 130,
    columns: int = _COLUMNS,
) -> str:
    """Return a picture over the time of the run, with the faults behind the lines."""
    values = [v for each in series for _, v in each.points if not math.isnan(v)]
    values = [v for v in values if v > 0] if log else values
    if not values:
        return f"<h3>{html.escape(title)}</h3><p>no values</p>"
    low, high = (0.0 if zero else min(values)), max(values)
    if log:
        low, high = 10 ** math.floor(math.log10(low)), 10 ** math.ceil(math.log10(high * 1.001))
    high = high if high > low else low + 1.0

    def y(value: float) -> float:
        if log:
            share = math.log(max(value, low) / low) / math.log(high / low)
        else:
            share = (value - low) / (high - low)
        return height - 18 - share * (height - 26)

    def x(at_s: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * at_s / max(run.seconds, 1.0)

    parts = [f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{html.escape(title)}">']
    parts += _bands(run, x, height, titled=columns == _COLUMNS)
    parts += [
        f'<path class="grid" d="M{LEFT} {y(value):.1f}H{WIDTH - RIGHT}"/>'
        f'<text x="{LEFT - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{value:,g}</text>'
        for value in _ticks(low, high, log=log)
    ]
    below = f'y="{height - 4}" text-anchor="middle"'
    parts += [
        f'<text x="{x(60 * minute):.0f}" {below}>{minute:g} min</text>'
        for minute in _minutes(run.seconds)
    ]
    for number, each in enumerate(series):
        parts.append(
            f'<path class="line l{number}" d="{_path(reduced(each.points, columns), x, y)}"/>'
        )
    names = " ".join(
        f'<span class="k{n}">{html.escape(each.name)}</span>' for n, each in enumerate(series)
    )
    return f"<h3>{html.escape(title)} {names if len(series) > 1 else ''}</h3>{''.join(parts)}</svg>"


def _bands(run: Run, x: Callable[[float], float], height: int, *, titled: bool) -> Iterator[str]:
    """Yield a band for each fault, which says what it was if `titled`."""
    for episode in run.episodes:
        begin, end = x(episode.begin_s), x(min(episode.fresh_s or run.seconds, run.seconds))
        said = ""
        if titled:
            said = f"{episode.begin_s:.0f} s: {episode.text}"
            if episode.recovery_s is not None:
                said += f"; fresh again after {episode.recovery_s:.1f} s"
            said = f"<title>{html.escape(said)}</title>"
        yield (
            f'<rect class="fault" x="{begin:.1f}" y="4" width="{max(end - begin, 1):.1f}" '
            f'height="{height - 22}">{said}</rect>'
        )


def _path(
    points: Sequence[tuple[float, float]], x: Callable[[float], float], y: Callable[[float], float]
) -> str:
    pieces, pen = [], "M"
    for at_s, value in points:
        if math.isnan(value):
            pen = "M"
            continue
        pieces.append(f"{pen}{x(at_s):.1f} {y(value):.1f}")
        pen = "L"
    return "".join(pieces)


def _ticks(low: float, high: float, *, log: bool) -> list[float]:
    if log:
        return [10.0**n for n in range(round(math.log10(low)), round(math.log10(high)) + 1)]
    step = 10 ** math.floor(math.log10((high - low) / 2))
    step = next(step * m for m in (1, 2, 5, 10) if (high - low) / (step * m) <= 4)
    first = math.ceil(low / step)
    return [round(step * n, 10) for n in range(first, math.floor(high / step) + 1)]


def _minutes(seconds_of_run: float) -> list[float]:
    every = next((m for m in (0.25, 1, 2, 5, 10) if seconds_of_run / 60 / m <= 12), 30)
    return [every * n for n in range(int(seconds_of_run / 60 / every) + 1)]


# -------------------------------------------------------------------- text


def milliseconds(value: float | None) -> str:
    """Return a time in milliseconds or seconds. The histogram of the server ends at 10 s."""
    if value is None:
        return "-"
    if math.isinf(value):
        return "over 10 s"
    return f"{value:.0f} ms" if value < 1000 else f"{value / 1000:.1f} s"


def seconds(value: float | None) -> str:
    """Return a time in seconds for a reader."""
    return "-" if value is None else f"{value:.1f} s"


def _both(p50_ms: float | None, p99_ms: float | None) -> str:
    return f"{milliseconds(p50_ms)}, {milliseconds(p99_ms)}"


def _several(values: Iterable[int]) -> str:
    return ", ".join(f"{value:,}" for value in values)


def _named(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items() if count) or "none"


def _requests(run: Run) -> str:
    asked = run.requests
    rest = _named({k: v for k, v in asked.items() if k not in ("asked", "answered")})
    return f"{asked.get('asked', 0):,}, {asked.get('answered', 0):,} ({rest})"


def _list(lines: Iterable[str]) -> str:
    return f"<ul>{''.join(f'<li>{html.escape(line)}</li>' for line in lines)}</ul>"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    first = "".join(f"<th>{html.escape(cell)}</th>" for cell in head)
    others = "".join(
        f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in rows
    )
    return f"<table><tr>{first}</tr>{others}</table>"


_MEMORY = (
    f"<p>Resident MB. A process breaks the bound if it grows by more than {MOST_SLOPE_MB_H:g} MB/h "
    f"and by more than {MOST_GROWTH_MB:g} MB after its first two minutes. A broker fills its Java "
    f"heap over its life, so its bound is {BROKER_MB:g} MB: the heap, and as much outside it.</p>"
)
_HEAD = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>headrace: chaos</title>
<meta name="viewport" content="width=device-width"><style>
:root{color-scheme:light dark;--a:#1f5fbf;--b:#c2571a;--f:#c2571a26;--g:#8884}
@media(prefers-color-scheme:dark){:root{--a:#7fb0ff;--b:#f0a060;--f:#f0a06033}}
body{font:15px/1.5 system-ui,sans-serif;margin:0}main{max-width:1100px;margin:0 auto;padding:1em}
h3{font-size:13px;font-weight:600;margin:1em 0 0}svg{width:100%;height:auto;display:block}
text{font-size:11px;fill:currentColor;opacity:.7}.line{fill:none;stroke-width:1.3}
.l0{stroke:var(--a)}.l1{stroke:var(--b)}.k0{color:var(--a)}.k1{color:var(--b)}
.fault{fill:var(--f)}.fault:hover{fill:#c2571a66}.grid{stroke:var(--g);stroke-width:.5}
table{border-collapse:collapse;font-size:14px}td,th{padding:.2em .8em;text-align:left;
border-bottom:1px solid var(--g);font-variant-numeric:tabular-nums}
</style></head><body><main>"""
