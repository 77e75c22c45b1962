"""The record of a run: what was run, on which data, and its figures over event time.

All kinds of runs have one form, so that a demo, a replay and an arm can be compared. Functions at
the end make the form from what the parts of headrace write anyway: the report of a replay, the
history of an experiment, the decisions of a promotion. Nothing is therefore measured twice, and a
record that is lost can be made again from its source.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

import msgspec

from headrace.learner.experiments.history import ArmRecord
from headrace.runtime.counted_nouns import counted
from headrace.serving.promotion.promotion_state import Promotion

WINDOW_FIGURES = ("auc", "request_auc", "log_loss", "normalized_entropy", "calibration")
_COUNTS = ("impressions", "clicks", "late_clicks", "dead_letters", "rows")
_LAST_KINDS = {"stopped": "stopped", "eliminated": "eliminated", "ended": "done"}


class RunKind(StrEnum):
    """The command or part that a run is of."""

    RUN = "run"
    """`headrace run`."""
    DEMO = "demo"
    FIT = "fit"
    EXPERIMENT = "experiment"
    ARM = "arm"
    """Of an experiment."""
    PROMOTION = "promotion"


class RunState(StrEnum):
    """The state of a run."""

    UNFINISHED = "unfinished"
    """It runs, or it was killed."""
    DONE = "done"
    STOPPED = "stopped"
    """By an operator, or an arm at a rung."""
    ELIMINATED = "eliminated"
    """An arm that is worse than its control."""
    FAILED = "failed"


class RunPoint(msgspec.Struct, frozen=True, omit_defaults=True):
    """Figures at one moment of event time."""

    event_ms: int
    figures: dict[str, float]
    """Undefined figures are missing."""
    low: float | None = None
    high: float | None = None
    """Bounds of the confidence sequence of `difference`."""


class TrackedRun(msgspec.Struct, frozen=True, omit_defaults=True):
    """One run. Fields may be added; a field that is missing has its default."""

    id: str
    """Name of its folder; of runs in Kafka `experiment/NAME`, `promotion/MODEL`, ..."""
    kind: RunKind
    name: str
    """Of the model or the experiment."""
    state: RunState
    begun_ms: int = 0
    """Wall clock; event time for runs in Kafka, which record no other. 0: unknown."""
    seconds: float | None = None
    version: str = ""
    """Of headrace."""
    commit: str = ""
    """Of the repository that has the spec; ends with -dirty if files in it were changed."""
    seed: int | None = None
    spec: str = ""
    """The text of the spec; of an experiment the text of its file."""
    data: tuple[str, ...] = ()
    settings: dict[str, Any] = {}
    figures: dict[str, float] = {}
    """At the end. Undefined figures are missing."""
    points: tuple[RunPoint, ...] = ()
    arms: tuple[TrackedRun, ...] = ()
    decisions: tuple[str, ...] = ()
    """With time and reason, oldest first."""
    reason: str = ""
    """The reason of the end."""
    report: str = ""
    """File of the report, in the folder of the run."""


def report_figures(report: Mapping[str, Any]) -> dict[str, float]:
    """Return the figures of a report of `headrace run`."""
    figures = defined(report["progressive"])
    figures |= defined({name: report.get(name) for name in _COUNTS})
    freshness = report.get("freshness_ms", {})
    return figures | defined(
        {
            "calibration_error": report.get("calibration_error"),
            "scored_after_ms": report.get("scored_after_ms") or None,
            "freshness_p50_ms": freshness.get("p50"),
            "freshness_p99_ms": freshness.get("p99"),
        }
    )


def report_points(report: Mapping[str, Any]) -> tuple[RunPoint, ...]:
    """Return the sliding windows of a report, each at its middle."""
    half_ms = report.get("window_ms", 0) // 2
    return tuple(
        RunPoint(window["begin_ms"] + half_ms, defined({k: window.get(k) for k in WINDOW_FIGURES}))
        for window in report.get("by_window", ())
    )


def experiment_run(name: str, history: Sequence[ArmRecord], run_id: str = "") -> TrackedRun:
    """Return the run of an experiment, with a run for each arm."""
    run_id = run_id or f"experiment/{name}"
    arms: dict[int, list[ArmRecord]] = {}
    for record in history:
        if record.kind != "log":
            arms.setdefault(record.arm, []).append(record)
    logs = [record for record in history if record.kind == "log"]
    ended = any(record.kind == "ended" for record in history)
    begins = [record.event_ms for record in history if record.event_ms]
    best = min(
        (each[-1] for each in arms.values() if each[-1].kind == "ended" and each[-1].arm),
        key=lambda record: math.inf if record.difference is None else record.difference,
        default=None,
    )
    return TrackedRun(
        id=run_id,
        kind=RunKind.EXPERIMENT,
        name=name,
        state=RunState.DONE if ended else RunState.UNFINISHED,
        begun_ms=min(begins, default=0),
        data=tuple(str(record.settings["topic"]) for record in logs),
        settings={} if best is None else {"best arm": best.name, **_settings(arms[best.arm])},
        figures=defined(
            {
                "arms": len(arms) - (0 in arms),
                "examples": max((record.examples for record in history), default=0),
                "difference": None if best is None else best.difference,
                "log_loss": None if best is None else best.loss,
                "control_log_loss": arms[0][-1].loss if 0 in arms else None,
            }
        ),
        arms=tuple(arm_run(run_id, records) for _, records in sorted(arms.items())),
        decisions=tuple(
            f"{record.name}: {record.kind} at {counted(record.examples, 'example')}: "
            f"{record.reason}"
            for record in history
            if record.kind in ("stopped", "eliminated", "better", "ended")
        ),
    )


def arm_run(parent: str, records: Sequence[ArmRecord]) -> TrackedRun:
    """Return the run of an arm, from its records."""
    last = records[-1]
    return TrackedRun(
        id=f"{parent}/{last.name}",
        kind=RunKind.ARM,
        name=last.name,
        state=RunState(_LAST_KINDS.get(last.kind, RunState.UNFINISHED)),
        begun_ms=next((record.event_ms for record in records if record.event_ms), 0),
        settings=_settings(records),
        figures=defined(
            {"examples": last.examples, "log_loss": last.loss, "difference": last.difference}
        ),
        points=tuple(
            RunPoint(
                record.event_ms,
                defined({"log_loss": record.loss, "difference": record.difference}),
                record.low,
                record.high,
            )
            for record in records
            if record.kind == "scored"
        ),
        reason=last.reason,
    )


def promotion_run(promotion: Promotion) -> TrackedRun:
    """Return the run of a promotion. Its points are the shares of the traffic."""
    decisions = promotion.decisions
    return TrackedRun(
        id=f"promotion/{promotion.model}",
        kind=RunKind.PROMOTION,
        name=promotion.model,
        state=RunState.DONE if promotion.ended else RunState.UNFINISHED,
        begun_ms=decisions[0].time_ms if decisions else 0,
        seconds=(decisions[-1].time_ms - decisions[0].time_ms) / 1000 if decisions else None,
        spec=promotion.spec,
        settings={"control": promotion.control, "alias": promotion.rules.alias},
        figures={"share": promotion.share},
        points=tuple(RunPoint(each.time_ms, {"share": each.share}) for each in decisions),
        decisions=tuple(
            f"{each.stage} {100 * each.share:g} %: {each.reason}" for each in decisions
        ),
        reason=f"{promotion.stage}: {decisions[-1].reason}" if decisions else "",
    )


def _settings(records: Sequence[ArmRecord]) -> dict[str, Any]:
    return next((dict(record.settings) for record in records if record.settings), {})


def defined(figures: Mapping[str, float | None]) -> dict[str, float]:
    """Return the figures that are numbers."""
    return {
        name: float(value)
        for name, value in figures.items()
        if value is not None and math.isfinite(value)
    }
