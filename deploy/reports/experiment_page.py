"""The page of an experiment: paired losses with bands, rungs, decisions, promotions, traffic.

One HTML file without scripts or links, so it can be mailed and opened on a phone. Curves are SVG
that scales with the window.
"""

import html
import time
from collections.abc import Sequence

from headrace.deploy.reports.tracking.tracked_run import TrackedRun
from headrace.learner.experiments.history import ArmRecord, arm_state
from headrace.runtime.counted_nouns import counted

_WIDTH, _HEIGHT, _LEFT = 640, 180, 70
_COLOURS = {"better": "#1a7f37", "eliminated": "#b42318", "stopped": "#8a6d3b"}
_PLAIN = "#2456a6"
_HEADS = ("arm", "state", "examples", "difference", "reason")
_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 1rem auto; max-width: 60rem; padding: 0 1rem }
section { border-top: 1px solid #ccc; padding: .5rem 0 }
svg { width: 100%; height: auto } .wide { overflow-x: auto }
table { border-collapse: collapse } td, th { padding: .2rem .6rem; text-align: left }
.bar { width: 20rem } .bar i { background: #2456a6; display: block; height: .6rem }
code { background: #f2f2f2; overflow-wrap: anywhere } @media (max-width: 600px) {
.bar { width: 40% } .arms, .arms tbody { display: block } .arms tr:first-child { display: none }
.arms tr { border-top: 1px solid #ccc; display: grid; gap: .1rem .6rem; padding: .5rem 0;
grid-template-columns: repeat(2, minmax(0, 1fr)) }
.arms td { overflow-wrap: anywhere; padding: 0 } .arms td:last-child { grid-column: 1 / -1 }
.arms td::before { color: #777; content: attr(data-head); display: block; font-size: .75rem } }
@media (prefers-color-scheme: dark) {
body { background: #16181d; color: #ddd } code { background: #2a2d35 } }
"""


def render_experiment(
    name: str, history: Sequence[ArmRecord], promotions: Sequence[TrackedRun] = ()
) -> str:
    """Return the page of an experiment as HTML. promotions: of its arms."""
    told = [record for record in history if record.kind != "log"]
    arms: dict[int, list[ArmRecord]] = {}
    for record in told:
        arms.setdefault(record.arm, []).append(record)
    title = html.escape(f"Experiment {name}")
    ordered = sorted((each for number, each in arms.items() if number), key=_order)
    rows = "".join(_row(records) for records in ordered)
    heads = "".join(f"<th>{head}</th>" for head in _HEADS)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{_STYLE}</style></head><body><h1>{title}</h1>"
        f"<p>{counted(len(ordered), 'arm')}. The difference is an arm's mean log loss minus the "
        "control's, on the same examples. Lower is better. Bands are confidence sequences.</p>"
        f'<div class="wide"><table class="arms"><tr>{heads}</tr>{rows}</table></div>'
        f"{''.join(_traffic(promotion) for promotion in promotions)}"
        f"{''.join(_section(records) for records in ordered)}</body></html>\n"
    )


def _traffic(promotion: TrackedRun) -> str:
    """Return how a promotion splits the traffic of its alias, over time and now."""
    share, control = promotion.figures["share"], str(promotion.settings["control"])
    bars = "".join(
        f"<tr><td>{html.escape(model)}</td><td>{100 * part:g} %</td>"
        f'<td class="bar"><i style="width:{100 * part:.4g}%"></i></td></tr>'
        for model, part in ((control, 1.0 - share), (promotion.name, share))
    )
    events = "".join(
        f"<li>{_moment(point.event_ms)} {html.escape(decision)}</li>"
        for point, decision in zip(promotion.points, promotion.decisions, strict=True)
    )
    alias = html.escape(str(promotion.settings["alias"]))
    return (
        f"<section><h2>Traffic of {alias}</h2><table>{bars}</table>"
        f"<p>{html.escape(promotion.name)}: {html.escape(promotion.reason)}</p>"
        f"<ul>{events}</ul></section>"
    )


def _order(records: Sequence[ArmRecord]) -> tuple[int, float]:
    last = records[-1]
    return -last.examples, float("inf") if last.difference is None else last.difference


def _row(records: Sequence[ArmRecord]) -> str:
    last = records[-1]
    state = arm_state(records)
    texts = (
        last.name,
        state.name,
        f"{state.examples:,}",
        "" if last.difference is None else f"{last.difference:+.5f}",
        state.reason,
    )
    cells = zip(_HEADS, texts, strict=True)
    row = "".join(f'<td data-head="{head}">{html.escape(text)}</td>' for head, text in cells)
    return f"<tr>{row}</tr>"


def _section(records: Sequence[ArmRecord]) -> str:
    first = records[0]
    settings = ", ".join(f"{key} = {value}" for key, value in first.settings.items())
    events = "".join(
        f"<li>{_moment(record.event_ms)} <b>{record.kind}</b> at "
        f"{counted(record.examples, 'example')}: {html.escape(record.reason)}</li>"
        for record in records
        if record.kind not in ("begun", "scored")
    )
    return (
        f"<section><h2>{html.escape(first.name)}</h2><p><code>{html.escape(settings)}</code></p>"
        f"{_curve(records)}<ul>{events}</ul></section>"
    )


def _curve(records: Sequence[ArmRecord]) -> str:
    """Return the difference of an arm over event time as SVG; empty before its first batch."""
    scored = [
        (record.event_ms, record.difference, record.low, record.high)
        for record in records
        if record.kind == "scored" and record.difference is not None
    ]
    if not scored:
        return ""
    banded = [
        (at, low, high) for at, _, low, high in scored if low is not None and high is not None
    ]
    # the first bands are very wide: the scale is that of the differences and of the last band
    seen = [difference for _, difference, _, _ in scored] + [0.0]
    seen += [bound for _, low, high in banded[-1:] for bound in (low, high)]
    least, most = min(seen), max(seen)
    margin = 0.1 * (most - least) or 1e-6
    least, most = least - margin, most + margin
    begin, span = scored[0][0], max(scored[-1][0] - scored[0][0], 1)

    def x(at_ms: int) -> float:
        return _LEFT + (_WIDTH - _LEFT) * (at_ms - begin) / span

    def y(value: float) -> float:
        return _HEIGHT * (most - min(max(value, least), most)) / (most - least)

    line = " ".join(f"{x(at):.1f},{y(value):.1f}" for at, value, _, _ in scored)
    upper = [f"{x(at):.1f},{y(high):.1f}" for at, _, high in banded]
    lower = [f"{x(at):.1f},{y(low):.1f}" for at, low, _ in reversed(banded)]
    marks = "".join(
        f'<circle cx="{x(min(record.event_ms, begin + span)):.1f}" cy="{y(0.0):.1f}" r="5" '
        f'fill="{_COLOURS.get(record.kind, _PLAIN)}"><title>{record.kind}: '
        f"{html.escape(record.reason)}</title></circle>"
        for record in records
        if record.kind not in ("begun", "scored") and record.event_ms >= begin
    )
    labels = "".join(
        f'<text x="0" y="{min(max(y(value), 12), _HEIGHT - 2):.1f}" font-size="12" '
        f'fill="currentColor">{value:+.5f}</text>'
        for value in (least, 0.0, most)
    )
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT + 8}" role="img">'
        f'<polygon points="{" ".join(upper + lower)}" fill="{_PLAIN}" opacity=".18"/>'
        f'<line x1="{_LEFT}" x2="{_WIDTH}" y1="{y(0.0):.1f}" y2="{y(0.0):.1f}" stroke="gray"/>'
        f'<polyline points="{line}" fill="none" stroke="{_PLAIN}" stroke-width="2"/>'
        f"{marks}{labels}</svg>"
    )


def _moment(at_ms: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.gmtime(at_ms / 1000))
