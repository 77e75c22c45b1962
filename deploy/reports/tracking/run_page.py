"""The page of one run or of several: figures, settings that differ, and curves over event time.

One HTML file without scripts or links, so it can be mailed and opened on a phone. All curves of a
figure share their axes. Each curve begins at the start of its run.
"""

from __future__ import annotations

import html
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from headrace.deploy.reports.tracking.run_comparison import MOST_COLUMNS, compare_runs, curve_points

if TYPE_CHECKING:
    from headrace.deploy.reports.tracking.tracked_run import RunPoint, TrackedRun

_WIDTH, _HEIGHT, _LEFT = 640, 200, 70
_COLOURS = ("#2456a6", "#b42318", "#1a7f37", "#8a6d3b", "#6f42c1", "#0b7285", "#c2255c", "#495057")
_MOST_CURVES = len(_COLOURS)
_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 1rem auto; max-width: 60rem; padding: 0 1rem }
svg { width: 100%; height: auto } .wide { overflow-x: auto }
table { border-collapse: collapse } td, th { padding: .2rem .6rem; text-align: left }
pre { background: #f2f2f2; overflow-x: auto; padding: .5rem } @media (prefers-color-scheme: dark) {
body { background: #16181d; color: #ddd } pre { background: #2a2d35 } }
"""


def render_runs(runs: Sequence[TrackedRun]) -> str:
    """Return the page of runs as HTML. The arms of a single run get curves of their own."""
    alone = runs[0] if len(runs) == 1 else None
    title = html.escape(f"Run {alone.id}" if alone else f"{len(runs)} runs")
    drawn = list(alone.arms) if alone is not None and alone.arms else list(runs)
    best = sorted(drawn, key=_rank)[:_MOST_CURVES]
    curves = "".join(
        f"<h2>{html.escape(name)}</h2>{_chart(name, best)}" for name in _curve_names(best)
    )
    left_out = (
        f"<p>The page shows the curves of the best {len(best)} of {len(drawn)}.</p>"
        if len(drawn) > len(best)
        else ""
    )
    ends = f"{_decisions(alone)}{_spec(alone)}" if alone is not None else ""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{_STYLE}</style></head><body><h1>{title}</h1>"
        f"{_table(runs)}{left_out}{curves}{ends}</body></html>\n"
    )


def _rank(run: TrackedRun) -> tuple[float, float]:
    figures = run.figures
    return -figures.get("examples", 0.0), figures.get("difference", float("inf"))


def _table(runs: Sequence[TrackedRun]) -> str:
    compared = compare_runs(runs)
    rows = [("begun", [_moment(run.begun_ms) for run in runs])]
    if len(runs) == 1:
        run = runs[0]
        rows += [
            (name, [text])
            for name, text in (
                *(("state", str(run.state)), ("reason", run.reason)),
                *(("version", run.version), ("commit", run.commit)),
                *(("data", ", ".join(run.data)), ("seed", str(run.seed or ""))),
            )
            if text
        ]
    rows += [(name, list(values)) for name, values in compared.settings.items()]
    rows += [
        (name, ["-" if value is None else f"{value:,.6g}" for value in values])
        for name, values in compared.figures.items()
    ]
    table = [["", *compared.ids], *([name, *values] for name, values in rows)]
    if len(runs) > MOST_COLUMNS:
        table = [list(column) for column in zip(*table, strict=True)]
    head, *body = (_row("td" if place else "th", texts) for place, texts in enumerate(table))
    return f'<div class="wide"><table>{head}{"".join(body)}</table></div>'


def _row(tag: str, texts: Iterable[str]) -> str:
    return "<tr>" + "".join(f"<{tag}>{html.escape(text)}</{tag}>" for text in texts) + "</tr>"


def _decisions(run: TrackedRun) -> str:
    items = "".join(f"<li>{html.escape(each)}</li>" for each in run.decisions)
    return f"<h2>decisions</h2><ul>{items}</ul>" if items else ""


def _spec(run: TrackedRun) -> str:
    return f"<h2>spec</h2><pre>{html.escape(run.spec)}</pre>" if run.spec else ""


def _curve_names(runs: Sequence[TrackedRun]) -> list[str]:
    names = (name for run in runs for point in run.points for name in point.figures)
    return list(dict.fromkeys(names))


def _chart(figure: str, runs: Sequence[TrackedRun]) -> str:
    series = [(place, run, curve_points(run, figure)) for place, run in enumerate(runs)]
    series = [each for each in series if each[2]]
    values = [point.figures[figure] for _, _, points in series for point in points]
    if figure == "difference":
        values.append(0.0)
        # the first bands are very wide: the scale is that of the differences and the last bands
        last = [points[-1] for _, _, points in series]
        values += [
            bound for point in last for bound in (point.low, point.high) if bound is not None
        ]
    least, most = min(values), max(values)
    margin = 0.05 * (most - least) or 1e-6
    least, most = least - margin, most + margin
    span = max(1, *(points[-1].event_ms - points[0].event_ms for _, _, points in series))

    def place(begin_ms: int, point: RunPoint, value: float) -> str:
        x = _LEFT + (_WIDTH - _LEFT) * (point.event_ms - begin_ms) / span
        inside = min(max(value, least), most)
        return f"{x:.1f},{_HEIGHT * (most - inside) / (most - least):.1f}"

    drawn = ""
    for number, run, points in series:
        begin_ms, colour = points[0].event_ms, _COLOURS[number]
        line = " ".join(place(begin_ms, point, point.figures[figure]) for point in points)
        if figure == "difference":
            drawn += _band(points, colour, partial(place, begin_ms))
        if len(points) == 1:
            x, y = line.split(",")
            drawn += f'<circle cx="{x}" cy="{y}" r="4" fill="{colour}"/>'
        drawn += (
            f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2">'
            f"<title>{html.escape(run.id)}</title></polyline>"
        )
    labels = "".join(
        f'<text x="0" y="{min(max(_HEIGHT * (most - value) / (most - least), 12), _HEIGHT):.1f}" '
        f'font-size="12" fill="currentColor">{value:.5g}</text>'
        for value in (least, most)
    )
    legend = "".join(
        f'<span style="color:{_COLOURS[number]}">■</span> {html.escape(_label(run))}&emsp;'
        for number, run, _ in series
    )
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT + 8}" role="img">{drawn}{labels}</svg>'
        f"<p>{legend}over {_length(span)} of event time</p>"
    )


def _band(points: Sequence[RunPoint], colour: str, place: Callable[[RunPoint, float], str]) -> str:
    upper = [place(point, point.high) for point in points if point.high is not None]
    lower = [place(point, point.low) for point in reversed(points) if point.low is not None]
    return f'<polygon points="{" ".join(upper + lower)}" fill="{colour}" opacity=".12"/>'


def _label(run: TrackedRun) -> str:
    """Return the name of an arm, which is short, and of other runs the id, which is unique."""
    return run.name if run.kind == "arm" else run.id


def _length(span_ms: int) -> str:
    return f"{span_ms / 3_600_000:,.1f} h" if span_ms >= 3_600_000 else f"{span_ms / 1000:,.0f} s"


def _moment(at_ms: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.gmtime(at_ms / 1000)) if at_ms else "-"
