"""Runs from their sources: the folder of runs, and the topics of experiments, aliases and windows.

Topics that do not exist have no runs. A run is found by its id, or by the begin of an id that only
one run has.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from headrace.deploy.errors import DeployError
from headrace.deploy.reports.tracking.run_registry import RunRegistry
from headrace.deploy.reports.tracking.tracked_run import (
    RunKind,
    TrackedRun,
    evaluation_run,
    experiment_run,
    promotion_run,
)
from headrace.ingest.errors import MissingTopic
from headrace.ingest.kafka.reading.bounded_reader import read_all
from headrace.ingest.kafka.settings import KafkaSettings
from headrace.learner.experiments.live.history_topic import read_histories
from headrace.learner.experiments.run_folder import read_history
from headrace.serving.deployments.topic_follower import DEPLOYMENTS_TOPIC
from headrace.serving.evaluation.windows import read_minutes, read_published
from headrace.serving.promotion.promotion_state import decoded_promotion

_HISTORY = "history.ndjson"
_PROMOTION = b"promotion/"


def stored_runs(folder: Path) -> list[TrackedRun]:
    """Return the runs of a folder, oldest first. Raises DeployError for an unreadable record."""
    registry = RunRegistry(folder)
    runs = {run_id: registry.read(run_id) for run_id in registry.ids()}
    for run_id, run in runs.items():
        own = Path(run.settings.get("folder", ""))
        if run.kind is RunKind.EXPERIMENT and (own / _HISTORY).is_file():
            runs[run_id] = _with_history(own, run)
    for path in sorted(folder.glob(f"*/{_HISTORY}")):
        runs.setdefault(path.parent.name, _with_history(path.parent, None))
    return sorted(runs.values(), key=lambda run: (run.begun_ms, run.id))


def published_runs(kafka: KafkaSettings) -> list[TrackedRun]:
    """Return live experiments, promotions and evaluations. Raises KafkaUnreachable."""
    runs: list[TrackedRun] = []
    with suppress(MissingTopic):
        histories = read_histories(kafka)
        runs += [experiment_run(name, found.records) for name, found in sorted(histories.items())]
    runs += published_promotions(kafka)
    with suppress(MissingTopic):
        windows = read_published(kafka)
        runs += [evaluation_run(model, windows) for model in sorted({w.model for w in windows})]
    return runs


def find_run(wanted: str, runs: Sequence[TrackedRun], kafka: KafkaSettings | None) -> TrackedRun:
    """Return the run with this id or begin of an id; an arm after another slash.

    Raises DeployError.
    """
    every = list(_with_arms(runs))
    found = [run for run in every if run.id == wanted]
    # the begin of a run's id is also that of its arms
    found = found or [run for run in runs if run.id.startswith(wanted)]
    found = found or [run for run in every if run.id.startswith(wanted)]
    if not wanted or not found or (len(found) > 1 and found[0].id != wanted):
        known = ", ".join(run.id for run in (found or runs)[:10]) or "no run"
        raise DeployError(
            f"expected one run ({known}), got {wanted!r}: `headrace runs` has them all"
        )
    run = found[0]
    if run.kind is RunKind.EVALUATION and kafka is not None:
        return _evaluated(run, kafka)
    return run


def _with_history(folder: Path, recorded: TrackedRun | None) -> TrackedRun:
    """Return the run of an experiment's folder, with what its record adds to its history."""
    if recorded is None:
        return experiment_run(folder.name, read_history(folder), folder.name)
    run = experiment_run(recorded.name, read_history(folder), recorded.id)
    return msgspec.structs.replace(
        recorded,
        figures=run.figures,
        settings=recorded.settings | run.settings,
        arms=run.arms,
        decisions=run.decisions,
    )


def published_promotions(kafka: KafkaSettings) -> list[TrackedRun]:
    """Return all promotions; none if their topic does not exist. Raises KafkaUnreachable."""
    last: dict[bytes, bytes] = {}
    with suppress(MissingTopic):
        for record in read_all(kafka, DEPLOYMENTS_TOPIC):
            if (record.key or b"").startswith(_PROMOTION):
                last[record.key or b""] = record.value or b""
    return [promotion_run(decoded_promotion(last[key])) for key in sorted(last) if last[key]]


def _evaluated(run: TrackedRun, kafka: KafkaSettings) -> TrackedRun:
    """Return the run of an evaluation with all minutes that the topic still has."""
    model, _, alias = run.id.partition("/")[2].partition("/")
    aliases = [alias] if alias else [arm.name for arm in run.arms]
    whole = evaluation_run(model, [each for one in aliases for each in read_minutes(kafka, one)])
    return whole.arms[0] if alias and whole.arms else whole


def _with_arms(runs: Sequence[TrackedRun]) -> Iterator[TrackedRun]:
    for run in runs:
        yield run
        yield from run.arms
