"""Runs all checks of `headrace pserver doctor` on one survey of a store, and formats the findings.

The checks are small pure functions (server_checks, cluster_checks, model_checks). Findings are
sorted by severity, and subjects without findings are listed too.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from headrace.deploy.operations import cluster_checks, model_checks, server_checks
from headrace.deploy.operations.broker_clocks import check_broker_clocks
from headrace.deploy.operations.check_result import SUBJECTS, CheckResult, Severity
from headrace.deploy.operations.examples_topic import ExamplesBounds
from headrace.deploy.operations.model_checks import NewestSnapshot
from headrace.deploy.operations.parked import check_parked
from headrace.learner.spec.model_spec import ModelSpec
from headrace.pserver.inspection.model_survey import Survey

_STYLES = {Severity.BROKEN: "bold red", Severity.WARNING: "yellow", Severity.NOTE: "cyan"}
_MOST_PLACES = 6
"""Places named in one finding; the others are counted."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Findings, the worst first, and the subjects that were checked."""

    model: str
    findings: Sequence[CheckResult]
    looked_at: Sequence[str]
    """Subjects."""

    @property
    def exit_code(self) -> int:
        """0: only notes; 1: warnings; 2: something is broken."""
        return int(max((each.severity for each in self.findings), default=Severity.NOTE))

    @property
    def well(self) -> list[str]:
        """Checked subjects without a finding."""
        found = {each.subject for each in self.findings}
        return [subject for subject in self.looked_at if subject not in found]


def diagnose(
    survey: Survey,
    spec: ModelSpec,
    topic: ExamplesBounds | None,
    newest: NewestSnapshot | None = None,
) -> Diagnosis:
    """Return the findings of all checks.

    topic: None if Kafka was not given. newest: None if no folder of snapshots was given.
    """
    findings = [
        *server_checks.check_servers(survey.nodes),
        *server_checks.check_functions(survey.nodes),
        *server_checks.check_memory(survey.nodes),
        *server_checks.check_persistence(survey.nodes),
        *server_checks.check_replication(survey.nodes),
        *server_checks.check_clocks(survey.nodes),
        *cluster_checks.check_cluster(survey.nodes),
        *model_checks.check_model(survey, spec),
        *model_checks.check_rows(survey),
        *model_checks.check_buckets(survey),
        *model_checks.check_keepers(survey),
        *model_checks.check_layout(survey),
        *check_parked(survey, topic),
    ]
    if topic is not None:
        findings += model_checks.check_kafka(survey, topic)
        findings += check_broker_clocks(topic.clocks, spec.fields.label.window_ms)
    if newest is not None:
        findings += model_checks.check_snapshots(survey, newest)
    unseen = set() if topic is not None else {"kafka"}
    unseen |= set() if newest is not None else {"snapshots"}
    if not survey.buckets:
        unseen |= {"buckets", "keepers"}
    looked_at = [subject for subject in SUBJECTS if subject not in unseen]
    findings.sort(key=lambda each: (-each.severity, SUBJECTS.index(each.subject)))
    return Diagnosis(spec.name, findings, looked_at)


def diagnosis_json(diagnosis: Diagnosis) -> dict[str, Any]:
    """Return the diagnosis as JSON, with each finding by itself."""
    return {
        "model": diagnosis.model,
        "exit_code": diagnosis.exit_code,
        "findings": [
            {**asdict(each), "severity": each.severity.name.lower()} for each in diagnosis.findings
        ],
        "well": diagnosis.well,
        "not_looked_at": [each for each in SUBJECTS if each not in diagnosis.looked_at],
    }


def diagnosis_text(diagnosis: Diagnosis) -> Group:
    """Return the diagnosis as text. Equal findings are shown once with all their places."""
    together = _together(diagnosis.findings)
    parts: list[Table | Text] = []
    table = Table(box=None, show_header=False, padding=(0, 2, 1, 0))
    for each, places in together:
        head = Text(each.severity.name.lower(), _STYLES[each.severity])
        head.append(f"\n{each.subject}", "default")
        details = Table.grid("", "", padding=(0, 1))
        for name, text in (
            ("where", shortened(places)),
            ("expected", each.expected),
            ("found", each.found),
            ("remedy", each.remedy),
        ):
            details.add_row(Text(name, "dim"), Text(text))
        table.add_row(head, details)
    if together:
        parts.append(table)
    counts = [sum(each.severity == kind for each, _ in together) for kind in Severity]
    summary = Text(f"{diagnosis.model}: ")
    for kind in reversed(Severity):
        count, name = counts[kind], kind.name.lower()
        plural = "s" if count != 1 and kind != Severity.BROKEN else ""
        summary.append(f"{count} {name}{plural}", _STYLES[kind] if count else "dim")
        summary.append(", " if kind else "")
    parts.append(summary)
    if diagnosis.well:
        parts.append(Text(f"well: {', '.join(diagnosis.well)}", "green"))
    if "kafka" not in diagnosis.looked_at:
        parts.append(Text("not checked: kafka (give --kafka)", "dim"))
    return Group(*parts)


def shortened(places: Iterable[str]) -> str:
    """Return places as short text, with buckets as ranges."""
    numbers, others = [], []
    for place in dict.fromkeys(places):
        if found := re.fullmatch(r"bucket (\d+)", place):
            numbers.append(int(found[1]))
        else:
            others.append(place)
    ranges: list[list[int]] = []
    for number in sorted(numbers):
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    named = [str(low) if low == high else f"{low}-{high}" for low, high in ranges]
    left_out = f" and more, {len(numbers)} in all" if len(named) > _MOST_PLACES else ""
    buckets = f"bucket{'s' * (len(numbers) > 1)} {', '.join(named[:_MOST_PLACES])}{left_out}"
    more = len(others) - _MOST_PLACES
    shown = others[:_MOST_PLACES] + ([f"{more} more"] if more > 0 else [])
    return ", ".join(([buckets] if numbers else []) + shown)


def _together(findings: Sequence[CheckResult]) -> list[tuple[CheckResult, list[str]]]:
    """Group findings that differ only in their place."""
    places: dict[tuple[object, ...], tuple[CheckResult, list[str]]] = {}
    for each in findings:
        key = (each.severity, each.subject, each.expected, each.found, each.remedy)
        places.setdefault(key, (each, []))[1].append(each.where)
    return list(places.values())
