"""Writes runs to an MLflow server.

    experiment   headrace-NAME, of the model or experiment
    run          found by the tag headrace.id, so a repeated update makes no second run
    params       settings and the keys of the spec, once
    metrics      figures over event time: its timestamp, and as step the seconds since the first
                 point; figures at the end as final_NAME
    tags         kind, state, version, commit, reason, decisions; arms have mlflow.parentRunId
    artifacts    spec and report

A run is sent whole when it ends, and `headrace runs RUN --track` sends it again at any time. Its
record is ours (`run_registry.py`, Kafka), so a server that is away costs one warning and no run.
*Refused:* updates while a run goes on, from a thread with a queue, for figures that the record has.

It uses mlflow-skinny: databricks:// and authentication work as in every MLflow client. Its own
retries are off, since one call would wait for minutes. Its telemetry is off, too.
"""

import logging
import os
import re
import time
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from headrace.deploy.errors import BadOption, DeployError
from headrace.deploy.reports.tracking.run_comparison import described
from headrace.deploy.reports.tracking.tracked_run import RunState, TrackedRun

log = logging.getLogger(__name__)

PATIENCE_S = 10.0
"""Time at the end of a command for a server that is away."""
_RETRY_S = 0.5
ID_TAG = "headrace.id"
_TEMPORARY = {
    *("INTERNAL_ERROR", "TEMPORARILY_UNAVAILABLE", "REQUEST_LIMIT_EXCEEDED"),
    *("RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED", "ABORTED", "IO_ERROR"),
}
_STATUSES = {
    RunState.UNFINISHED: "RUNNING",
    RunState.DONE: "FINISHED",
    RunState.STOPPED: "KILLED",
    RunState.ELIMINATED: "KILLED",
    RunState.FAILED: "FAILED",
}
_MODEL_TRAINING = {"mlflow.experimentKind": "custom_model_development"}
"""MLflow's page then opens with runs and metrics, not with traces of agents."""
# limits of MLflow's REST API for one request, and for values
_MOST_METRICS, _MOST_PARAMS, _LONGEST_PARAM, _LONGEST_TAG = 1000, 100, 500, 5000
_DEFAULTS = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    # two lines on standard output for each run that ends
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}


class MlflowTarget:
    """An MLflow server."""

    def __init__(self, uri: str) -> None:
        """`uri` as for MLFLOW_TRACKING_URI. Raises BadOption, DeployError."""
        if "://" not in uri and uri != "databricks":
            raise BadOption(f"--track: expected a URI such as http://HOST:5000, got {uri}")
        if find_spec("mlflow") is None:
            raise DeployError(
                "--track: expected the package mlflow-skinny, got none: "
                "pip install 'headrace[mlflow]'"
            )
        for name, value in _DEFAULTS.items():
            os.environ.setdefault(name, value)  # MLflow reads them when it is imported
        self._uri = uri
        self.name = f"MLflow at {re.sub('//[^/@]*@', '//', uri)}"
        self._client: Any = None
        self._experiments: dict[str, str] = {}

    def export(self, run: TrackedRun, folder: Path, patience_s: float = PATIENCE_S) -> bool:
        """Send a run with its arms, and its report in `folder`; return whether MLflow has it.

        It may have been sent before. An outage is retried for `patience_s`, then logged.
        """
        # takes seconds, so a command imports it when its work is done
        from mlflow.exceptions import MlflowException
        from mlflow.tracking import MlflowClient

        deadline_s = time.monotonic() + patience_s
        while True:
            try:
                self._client = self._client or MlflowClient(self._uri)
                sent = self._send(run, "", folder)
                for arm in run.arms:
                    self._send(arm, sent, folder)
            except (MlflowException, OSError) as error:  # requests' errors are of the latter
                away = isinstance(error, OSError) or error.error_code in _TEMPORARY
                if away and time.monotonic() < deadline_s:
                    time.sleep(_RETRY_S)
                    continue
                log.warning(
                    "%s did not get the run: %s. Send it again: headrace runs %s --track",
                    self.name,
                    _first_line(error),
                    run.id,
                )
                return False
            return True

    def _send(self, run: TrackedRun, parent: str, folder: Path) -> str:
        """Send a run, an arm below its parent; return MLflow's id of the run."""
        from mlflow.entities import RunTag

        client, run_id = self._client, self._run_of(run, parent)
        for metrics in _parts(list(_metrics(run)), _MOST_METRICS):
            client.log_batch(run_id, metrics=metrics)
        tags = [RunTag(key, value) for key, value in run_tags(run).items()]
        client.log_batch(run_id, tags=tags)
        if not _ended(run):
            return run_id
        ended_ms = run.begun_ms + int(1000 * (run.seconds or 0.0))
        client.set_terminated(run_id, _STATUSES[run.state], ended_ms or None)
        if run.spec:
            client.log_text(run_id, run.spec, "spec.toml")
        if run.report:
            client.log_artifact(run_id, str(folder / run.report))
        return run_id

    def _run_of(self, run: TrackedRun, parent: str) -> str:
        """Return MLflow's id of a run, which is created if it is missing."""
        # an arm belongs to the experiment of its parent
        name = run.id.rpartition("/")[0] if parent else ""
        experiment = self._experiments.get(name) or self._experiment(run.name)
        found = self._client.search_runs(
            [experiment], f"tags.`{ID_TAG}` = '{run.id}'", max_results=1
        )
        if found:
            run_id = str(found[0].info.run_id)
            if not _ended(run):
                self._client.update_run(run_id, status="RUNNING")
        else:
            run_id = self._create(run, parent, experiment)
        self._experiments[run.id] = experiment
        return run_id

    def _create(self, run: TrackedRun, parent: str, experiment: str) -> str:
        from mlflow.entities import Param

        tags = run_tags(run) | ({"mlflow.parentRunId": parent} if parent else {})
        begun_ms = run.begun_ms or None
        created = self._client.create_run(experiment, begun_ms, tags, run_name=run.id)
        run_id: str = created.info.run_id
        params = [Param(key, value) for key, value in run_params(run).items()]
        for part in _parts(params, _MOST_PARAMS):
            self._client.log_batch(run_id, params=part)
        return run_id

    def _experiment(self, name: str) -> str:
        from mlflow.exceptions import MlflowException

        name = f"headrace-{name}"
        found = self._client.get_experiment_by_name(name)
        if found is None:
            try:
                return str(self._client.create_experiment(name, tags=_MODEL_TRAINING))
            except MlflowException as error:  # another run has created it meanwhile
                if error.error_code != "RESOURCE_ALREADY_EXISTS":
                    raise
                found = self._client.get_experiment_by_name(name)
        return str(found.experiment_id)


def run_tags(run: TrackedRun) -> dict[str, str]:
    """Return the tags of a run."""
    tags = {
        ID_TAG: run.id,
        "headrace.kind": str(run.kind),
        "headrace.state": str(run.state),
        "headrace.version": run.version,
        "headrace.reason": run.reason,
        "headrace.best_arm": str(run.settings.get("best arm", "")),
        "headrace.decisions": "\n".join(run.decisions)[-_LONGEST_TAG:],
        "mlflow.source.name": "headrace",
        "mlflow.source.git.commit": run.commit,
        "mlflow.user": "headrace",
    }
    return {key: value for key, value in tags.items() if value}


def run_params(run: TrackedRun) -> dict[str, str]:
    """Return the params of a run. MLflow never changes one, so the state is a tag."""
    params = {
        re.sub(r"[^\w.\- /]", "_", key): value[:_LONGEST_PARAM]
        for key, value in described(run).items()
        if key not in ("state", "best arm") and value
    }
    return dict(sorted(params.items()))


def _metrics(run: TrackedRun) -> Iterator[Any]:
    from mlflow.entities import Metric

    for point in run.points:
        bounds = {"difference_low": point.low, "difference_high": point.high}
        step = (point.event_ms - run.points[0].event_ms) // 1000
        for key, value in (point.figures | bounds).items():
            if value is not None:
                yield Metric(key, value, point.event_ms, step)
    if _ended(run):
        ended_ms = run.begun_ms + int(1000 * (run.seconds or 0.0))
        for key, value in run.figures.items():
            yield Metric(f"final_{key}", value, ended_ms, 0)


def _ended(run: TrackedRun) -> bool:
    return run.state is not RunState.UNFINISHED


def _parts(items: Sequence[Any], most: int) -> Iterator[Sequence[Any]]:
    return (items[begin : begin + most] for begin in range(0, len(items), most))


def _first_line(error: Exception) -> str:
    text = str(error).partition("\n")[0].partition(" with exception ")[0]
    return re.sub("//[^/@ ]*@", "//", text)[:300]
