"""Keeps a whole pipeline running, with a collector, and shows how to use it.

The printed commands are complete: an event with every field of the spec, its click, and a request
for predictions. A user pastes them and sees the model learn.
"""

import shlex
import threading
from typing import Any

import orjson
from rich.console import Console

from headrace.deploy.local.pipeline import LocalPipeline, PipelineSettings
from headrace.deploy.local.services.progress import SetupProgress
from headrace.deploy.reports.event_log import curl_of
from headrace.ingest.events.contract import IMPRESSION_ID, REQUEST_ID, TIME
from headrace.ingest.features.fields import Policy
from headrace.learner.spec.architecture import LOGISTIC
from headrace.learner.spec.model_spec import ModelSpec
from headrace.serving.requests.sample_requests import sample_fields

_LOOK_S = 0.2
_NOW = "NOW"
"""Replaced by a shell expression: an event must have the time at which it is sent."""


def keep_up(settings: PipelineSettings, stop: threading.Event) -> None:
    """Start every part and serve until `stop` is set.

    Raises errors that an operator can fix: DeployError, StreamError, StoreError.
    """
    console = Console(stderr=True)
    with SetupProgress(console) as steps, LocalPipeline(settings, steps) as pipeline:
        if not pipeline.start(stop):
            return
        to = ["--kafka", pipeline.kafka_address, "--data", "log.csv"]
        replay = shlex.join(["headrace", "ingest", "replay", "--model", str(settings.model), *to])
        usage = usage_of(pipeline.spec, pipeline.address, pipeline.collector or "", replay)
        text = f"{usage}\n\n{pipeline.addresses}\n\nserving until Ctrl-C"
        console.print(text, highlight=False, soft_wrap=True, markup=False)
        while not stop.wait(_LOOK_S):
            pipeline.check()


def usage_of(spec: ModelSpec, address: str, collector: str, replay: str) -> str:
    """Return the commands that send a log, an impression and its click, and request predictions.

    replay: the command that sends a log. It is the first, because a log older than the events in
    Kafka is refused.
    """
    shown = [sample_event(spec, number) for number in (1, 2)]
    click = {IMPRESSION_ID: shown[0][IMPRESSION_ID], TIME: _NOW}
    return "\n".join(
        [
            f"page: {address}/",
            "",
            "send a whole log, before newer events (--layout for your columns, --sort if it is not",
            "in order):",
            replay,
            "",
            "send an impression:",
            _post(f"{collector}/v1/impressions", shown[0]),
            "",
            *_when_learned(spec),
            _post(f"{collector}/v1/clicks", click),
            "",
            *_first_predictions(spec),
            curl_of(address, spec, shown),
        ]
    )


def _when_learned(spec: ModelSpec) -> list[str]:
    """Return the lines above the command that sends a click."""
    label = spec.fields.label
    if label.policy is Policy.IMMEDIATE:
        return ["send its click. Until then, the model learns that the impression has none:"]
    return [
        f"send its click. The model learns both when the label window ends, {label.window_s:g} s",
        "after the impression:",
    ]


def _first_predictions(spec: ModelSpec) -> list[str]:
    """Return the lines above the command that requests predictions: what a new model answers."""
    structure = spec.structure
    known = f"about {structure.base_rate:g}, base_rate in its spec,"
    predicted = known if structure.loss == LOGISTIC else "the same"
    return [
        f"ask for predictions. A new model predicts {predicted} for each",
        "candidate. One click changes this a little, a whole log much more:",
    ]


def sample_event(spec: ModelSpec, number: int) -> dict[str, Any]:
    """Return an impression with a value for every field of the spec. Its time is a placeholder."""
    event: dict[str, Any] = {IMPRESSION_ID: f"shown-{number}", TIME: _NOW, REQUEST_ID: "page-1"}
    fields = spec.fields
    event |= sample_fields(fields, number)
    for source in fields.slice_by:
        event.setdefault(source, "a")
    if fields.weights.source:
        event.setdefault(fields.weights.source, 1)
    return event


def _post(url: str, event: dict[str, Any]) -> str:
    body = orjson.dumps(event).decode().replace("'", "\\u0027")
    # the quotes end before the expression, so that the shell runs it; seconds are enough
    body = body.replace(f'"{_NOW}"', "'$(date +%s)000'")
    return f"curl -s {url} -H 'content-type: application/json' -d '{body}'"
