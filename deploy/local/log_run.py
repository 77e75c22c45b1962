"""Replays logs through a pipeline on this machine and reports the result.

The steps are: replay, wait until every bucket has learned every example, count. The reported time
starts just before the first event is read and ends when the last mark is seen. It excludes the
start of the servers, the compilation of kernels, and reading the figures.

A run with `--state` goes on after a SIGKILL. Its processes end when their pipe to it closes, and
Kafka and Valkey keep their files. The next run on the same state claims the folder, starts the
services on these files, and finds the name of its replay in Kafka (`EarlierRuns`). The replay
counts the lines that Kafka has, and sends the rest (`ingest.replay`). The joiner continues at its
last transaction and the learner at the marks of its last push.
"""

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from headrace.deploy.errors import DeployError
from headrace.deploy.local.background_replay import BackgroundReplay, watch_replay
from headrace.deploy.local.drain import Backlog, Drain
from headrace.deploy.local.pipeline import LocalPipeline, PipelineSettings
from headrace.deploy.local.services.progress import SetupProgress
from headrace.deploy.reports.event_log import (
    check_log,
    curl_of,
    fields_of_requests,
    sample_request,
)
from headrace.deploy.reports.observer import ask_caught_up, copied
from headrace.deploy.reports.refusals import read_refusals
from headrace.deploy.reports.report import (
    count_rows,
    make_report,
    read_outcomes,
    refusal_figures,
    write_report,
)
from headrace.ingest.joiner.committed_state import JoinerState, read_state
from headrace.ingest.kafka.protocols import Source
from headrace.ingest.kafka.reading.bounded_reader import high_watermarks, offsets_at
from headrace.ingest.kafka.settings import KafkaSettings
from headrace.ingest.kafka.topics import EventTopics
from headrace.ingest.logs.layout import LogLayout
from headrace.ingest.logs.opening import open_log
from headrace.ingest.replay.backfill import check_backfill
from headrace.ingest.replay.named_replay import begun_name, model_of, replay_name
from headrace.ingest.replay.replayer import ReplayResult
from headrace.ingest.survey.findings import LogSurvey, duration
from headrace.ingest.survey.log_survey import survey_log
from headrace.learner.loop.marks.parked_requests import read_parked
from headrace.learner.models.factory import open_model
from headrace.learner.spec.model_spec import ModelSpec, load_spec
from headrace.pserver.store import Store
from headrace.runtime.counted_nouns import counted

_ADVICE = "Give this log another --state, or leave --state out"


@dataclass(frozen=True, slots=True)
class RunSettings:
    """Logs to replay, and the steps after the replay."""

    pipeline: PipelineSettings
    data: tuple[Path, ...]
    report: Path | None
    """File for the report. None: only shown."""
    speed: float | None
    """Multiple of real time. None: as fast as the pipeline follows."""
    serve_after: bool
    layout: LogLayout | None = None
    """Mapping of columns to events. None: the logs are directories of NDJSON."""
    sort: bool = False
    """Sort each log by event time first."""
    check: bool = True
    """Read each log once before anything starts, and refuse one that is mostly unusable."""


class EarlierRuns:
    """Counts and events of earlier runs on the same Kafka. Empty until `read`.

    Models on one Kafka share its events. Each model has a joiner and a learner of its own, which
    read all events that Kafka has. A run of another model on the same logs therefore sends only the
    lines that are not in Kafka. *Refused:* sending them again, or refusing the run. Joiners refuse
    a second copy as too late. And a user who tries two specs on one log expects both to learn it.
    """

    def __init__(self) -> None:
        self.joined = JoinerState()
        """Counts of this model's events."""
        self.replay: str | None = None
        """Name of the replay that this run begins or continues; None: nothing can continue it.

        Without a name, the replay writes no transactions.
        """
        self.unread = False
        """Whether there are events, of which this model has joined none."""
        self.letters: Mapping[Source, int] = {}
        """The ends of the topic of dead letters: later ones are of this run."""
        self.unlearned = 0
        """Batches of examples that this model's joiner wrote and its learner had not learned."""

    def read(self, kafka: KafkaSettings, spec: ModelSpec, run: RunSettings, store: Store) -> None:
        """Read it. Raises BackfillRefused, DeployError, KafkaUnreachable, MissingBucket."""
        if run.pipeline.state is None and run.pipeline.kafka is None:
            return
        logs = [open_log(path, run.layout) for path in run.data]
        name = replay_name(spec.name, logs, run.layout, sort=run.sort)
        self.joined = read_state(kafka, spec)
        self.unread = not self.joined.impressions and self.joined.lag > 0
        begun = begun_name(kafka, name)
        if begun is None:
            sorted_logs = (open_log(path, run.layout, sort=run.sort) for path in run.data)
            check_backfill(kafka, sorted_logs, spec.fields.label.window_ms, advice=_ADVICE)
        elif begun != name and not self.joined.impressions:
            _check_kept(kafka, begun)
        self.replay = begun or name
        self.letters = high_watermarks(kafka, EventTopics().dead_letters)
        if self.joined.impressions:
            with closing(Drain(kafka, spec, store)) as drain:
                self.unlearned = drain.behind().batches

    def begun_in_words(self, model: str) -> str:
        """Return what this run learns of earlier runs, besides its own logs; empty for nothing."""
        if self.unread:
            return f"{model} also learns the events that earlier runs have sent to this Kafka"
        if self.unlearned:
            batches = counted(self.unlearned, "batch")
            return f"{model} also learns {batches} of examples that earlier runs have joined"
        return ""

    def resumed_in_words(self, model: str, replayed: ReplayResult) -> str:
        """Return which events of the logs were in Kafka; empty if none were."""
        events, first = counted(replayed.resumed, "event"), model_of(self.replay or "")
        if not replayed.resumed:
            return ""
        run = "" if first == model else f"a run of {first}"
        if replayed.resumed == replayed.events and not replayed.stopped:
            return f"{run or 'an earlier run'} had sent all {events} of these logs"
        return f"continued {run or 'an interrupted run'}, which had sent {events}"


def _check_kept(kafka: KafkaSettings, replay: str) -> None:
    """Raise DeployError unless Kafka has all events that a replay for another model has sent."""
    names = EventTopics()
    for topic in (names.impressions, names.clicks):
        if deleted := sum(offsets_at(kafka, topic, 0).values()):
            raise DeployError(
                f"expected all events of these logs, which a run of {model_of(replay)} has sent, "
                f"in topic {topic}, got a topic from which Kafka has deleted the first "
                f"{counted(deleted, 'message')}. {_ADVICE}"
            )


def run_log(
    settings: RunSettings,
    stop: threading.Event,
    keep: Callable[[Mapping[str, Any]], object] = lambda _report: None,
) -> None:
    """Replay, report, and keep serving if requested. Return early when `stop` is set.

    keep: takes the report, before serving goes on.
    Raises errors that an operator can fix: DeployError, StreamError, StoreError.
    """
    console = Console(stderr=True)
    spec = load_spec(settings.pipeline.model)
    open_model(spec, settings.pipeline.buckets)  # without torch, a deep model is refused here
    surveys = _surveys(settings, spec, console)
    with SetupProgress(console) as steps, LocalPipeline(settings.pipeline, steps) as pipeline:
        before = EarlierRuns()

        def look() -> None:
            before.read(pipeline.kafka, pipeline.spec, settings, pipeline.store)

        if not pipeline.start(stop, look):
            return
        name = before.replay
        if begun := before.begun_in_words(spec.name):
            console.print(begun, highlight=False)
        replaying = BackgroundReplay(
            *(pipeline.kafka, pipeline.spec, settings.data, settings.speed),
            layout=settings.layout,
            resume_as=name,
            sort=settings.sort,
        )
        sent = watch_replay(replaying, console, stop, pipeline.check)
        if resumed := before.resumed_in_words(spec.name, replaying.replayed):
            console.print(resumed, highlight=False)
        if not sent:
            _tell_stopped(console, name)
            return
        with console.status("waiting until every event is learned") as status:

            def tell(behind: Backlog) -> None:
                pipeline.check()
                status.update(
                    f"waiting until every event is learned: {counted(behind.events, 'event')} to "
                    f"join, {counted(behind.batches, 'batch')} to apply"
                )

            if not pipeline.arrival.wait(stop, tell):
                _tell_stopped(console, name)
                return
        seconds = time.monotonic() - replaying.began_s
        report = _report(pipeline, settings, seconds, stop)
        report["earlier"] = {name: getattr(before.joined, name) for name in _COUNTED}
        recent = read_refusals(pipeline.kafka, pipeline.spec, before.letters)
        report["this_run"] = refusal_figures(recent)
        report["logs"] = [asdict(each) for each in surveys]
        if settings.report is not None:
            write_report(settings.report, report)
        keep(report)
        console.print(in_words(report, settings.report), highlight=False, soft_wrap=True)
        if settings.serve_after:
            fields = fields_of_requests(pipeline.spec.fields)
            shown = sample_request(settings.data[-1], fields, settings.layout)
            curl = curl_of(pipeline.address, pipeline.spec, shown)
            text = f"{pipeline.addresses}\nserving until Ctrl-C; try:\n{curl}"
            console.print(text, highlight=False, soft_wrap=True, markup=False)
            while not stop.wait(0.2):
                pipeline.check()


def _surveys(settings: RunSettings, spec: ModelSpec, console: Console) -> list[LogSurvey]:
    """Survey every log and show the warnings. Raises DeployError, BadOption, SpecError."""
    surveys = []
    for path in settings.data:
        check_log(path, settings.layout)
        if settings.check:
            with console.status(f"checking {path}"):
                found = survey_log(path, spec.fields, settings.layout, sort=settings.sort)
            if found.unusable:
                raise DeployError(f"{found.in_words()}\n{found.refusal}. Nothing was started")
            for warning in found.warnings():
                console.print(
                    f"warning: {path}: {warning}", highlight=False, soft_wrap=True, markup=False
                )
            surveys.append(found)
    return surveys


def _tell_stopped(console: Console, name: str | None) -> None:
    """Say what the next run does after this one was stopped. name: of its replay."""
    following = "run the same command again to continue"
    if name is None:
        following = "without --state, the next run begins again"
    console.print(f"stopped before everything was learned: {following}", highlight=False)


def _report(
    pipeline: LocalPipeline,
    settings: RunSettings,
    seconds: float,
    stop: threading.Event,
) -> dict[str, Any]:
    rows = copied(pipeline.store)
    server = ask_caught_up(pipeline.address, pipeline.spec.name, rows, stop)
    return make_report(
        state=read_state(pipeline.kafka, pipeline.spec),
        refusals=replace(
            read_refusals(pipeline.kafka, pipeline.spec),
            parked=tuple(read_parked(pipeline.store)),
        ),
        outcomes=read_outcomes(pipeline.kafka, pipeline.spec),
        data=settings.data,
        layout=settings.layout,
        rows=count_rows(rows.table, pipeline.spec.fields),
        freshness_ms={
            "p50": server.p50_ms if server else None,
            "p99": server.p99_ms if server else None,
        },
        seconds=seconds,
    ) | {"scored_after_ms": pipeline.spec.fields.label.delay_ms}


_COUNTED = (
    *("impressions", "clicks", "late_clicks", "unmatched_clicks", "duplicates"),
    *("duplicate_clicks", "dead_letters"),
)
_ACCURACIES = {
    "auc": "AUC",
    "request_auc": "within a request",
    "log_loss": "log loss",
    "normalized_entropy": "normalized entropy",
    "calibration": "calibration",
}
_WORSE_THAN_THE_RATE = (
    "normalized entropy above 1: the click rate alone would predict better. `headrace suggest` "
    "prints a spec with a base_rate and learning rates for this log"
)


def in_words(report: Mapping[str, Any], path: Path | None) -> str:
    """Return the report as text. Counts are those of this run; accuracy is that of all runs."""
    earlier, refused = report.get("earlier", {}), report | report.get("this_run", {})
    new = {name: report[name] - earlier.get(name, 0) for name in _COUNTED}
    clicks = new["clicks"] - new["late_clicks"] - new["unmatched_clicks"] - new["duplicate_clicks"]
    learned = (
        f"{counted(new['impressions'], 'impression')} and {counted(clicks, 'click')} learned in "
        f"{report['seconds']:.1f} s "
        f"({(new['impressions'] + new['clicks']) / report['seconds']:,.0f} events/s), "
        f"{counted(report['rows'], 'row')}"
    )
    excluded = (
        f"not learned: late clicks {new['late_clicks']:,}, clicks without an impression "
        f"{new['unmatched_clicks']:,}, duplicates {new['duplicates']:,}, "
        f"dead letters {new['dead_letters']:,}"
    )
    accuracies = ", ".join(
        f"{words} {report['progressive'][name]:.4f}"
        for name, words in _ACCURACIES.items()
        if report["progressive"][name] is not None
    )
    causes = _causes(report.get("logs", []))
    lines = [
        *(learned, excluded),
        *(_reason(each, causes.get(each["reason"], "")) for each in refused["refused_by_reason"]),
    ]
    if refused["held_batches"]:
        lines.append(
            f"quarantined, to protect the model: {counted(refused['held_examples'], 'example')} in "
            f"{counted(refused['held_batches'], 'batch')}"
        )
        lines += map(_reason, refused["held_by_reason"])
    if report.get("parked"):
        places = (
            f"{each['partition']}@{each['offset']} ({each['cause']})" for each in report["parked"]
        )
        lines.append(
            f"parked, not learned so far: {counted(report['parked_examples'], 'example')} at "
            f"{', '.join(places)} (headrace learner parked)"
        )
    if earlier.get("impressions"):
        lines.append(f"with the {counted(earlier['impressions'], 'impression')} of earlier runs:")
    if accuracies and (late_ms := report.get("scored_after_ms")):
        accuracies += (
            f" (by scores made {duration(late_ms)} after the impression, when it is learned; "
            "headrace evaluate measures served scores)"
        )
    lines.append(accuracies)
    if (report["progressive"]["normalized_entropy"] or 0.0) > 1.0:
        lines.append(_WORSE_THAN_THE_RATE)
    if path is not None:
        lines.append(f"report: {path}")
    return "\n".join(lines)


def _causes(surveys: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return what is wrong with refused lines in the terms of their file, by reason."""
    refused = (each for survey in surveys for each in survey["refused"])
    return {each["reason"]: each["cause"] for each in refused if each["cause"]}


def _reason(found: Mapping[str, Any], cause: str = "") -> str:
    said = f"{found['reason']} ({cause})" if cause else found["reason"]
    return f"  {counted(found['count'], 'time')}: {said}\n    first: {found['example']}"
