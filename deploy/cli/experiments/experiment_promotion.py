"""`headrace experiment promote` and `promotion`: an arm takes over the traffic of its control."""

import re
import shlex
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from headrace.deploy.cli.runs import OFF, run_outputs
from headrace.deploy.connections import kafka_words, open_store, redis_words
from headrace.deploy.errors import BadOption
from headrace.deploy.options import REDIS, TRACK_URI, KafkaOptions
from headrace.deploy.process_logs import show_warnings_only
from headrace.runtime.clock import wall_ms
from headrace.runtime.counted_nouns import counted
from headrace.runtime.settings import argument, setting
from headrace.runtime.termination import stopped_by_signals

if TYPE_CHECKING:
    from headrace.ingest.kafka.settings import KafkaSettings
    from headrace.learner.experiments.experiment_file import ArmPlan, Experiment
    from headrace.learner.experiments.live.saved_arm import SavedArm
    from headrace.serving.promotion.promotion_state import Promotion, PromotionDecision

_WINDOW_S = 60
"""Default of `headrace evaluate run --window`."""
_WAITING_EVERY_S = 30.0
_FIGURES = re.compile("[:,(][^;]*")
"""The parts of a reason to wait that change while the promotion waits for the same things."""
EXIT_ROLLED_BACK = 1
"""Exit status of a promotion that ended otherwise than promoted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentPromoteOptions:
    """Options of `headrace experiment promote`."""

    file: Path = argument(metavar="FILE")
    """Experiment file (TOML)."""
    arm: str = argument("", metavar="[ARM]")
    """Arm. Default: the arm that --run found better."""
    run: Path | None = setting(None, metavar="DIR")
    """Folder of the run that found the arm. Required for arms drawn from [space]."""
    fresh: bool = setting(False)
    """Begin without the rows that the arm learned, with examples of its own."""
    again: bool = setting(False)
    """Start the promotion again after a rollback."""


def promote(
    options: ExperimentPromoteOptions,
    kafka: KafkaOptions,
    redis: str = REDIS,
    track: str = TRACK_URI,
) -> None:
    """Turn an arm into a model, and move the control's traffic to it in steps.

    The rules are in `[promotion]` of the experiment file. Servers need --deployments. The model
    needs a learner, a keeper and an evaluation. An arm of a live --run keeps its rows and
    continues on the control's examples; any other arm also needs a joiner. If interrupted, run it
    again.
    """
    from headrace.deploy.reports.tracking.tracked_run import promotion_run
    from headrace.learner.experiments.experiment_file import load_experiment
    from headrace.serving.promotion.promotion_controller import (
        KafkaPromotionPorts,
        drive_promotion,
        read_promotion_state,
    )
    from headrace.serving.promotion.promotion_state import Promotion

    tracker = run_outputs(OFF, track).tracker
    show_warnings_only()
    experiment = load_experiment(options.file)
    plan, settings = _winner(experiment, options.arm, options.run), kafka.settings()
    spec, control, rules = plan.spec, experiment.control.name, experiment.promotion
    deployments, state = read_promotion_state(settings, spec.name)
    begins = state is None or (state.ended and options.again)
    if begins:
        now = deployments.aliases.get(rules.alias, control)
        if now != control:
            raise BadOption(f"alias {rules.alias}: expected {control}, the control, got {now}")
        saved = "--fresh" if options.fresh else _saved(experiment, plan, options.run, settings)
        _write_spec(options.file.parent / f"{spec.name}.toml", spec.text)
        _prepare(experiment, plan, settings, redis, saved)
    if begins or (state is not None and state.stage in ("preparing", "catching up")):
        places = options.file.parent / f"{spec.name}.toml", kafka.kafka, redis
        _say_processes(spec.name, control, settings, places, rules.window_s)
    rows_ready = _rows_ready(spec.name, redis)
    with (
        stopped_by_signals() as stop,
        KafkaPromotionPorts(settings, spec.name, control, rows_ready) as ports,
    ):
        if begins:
            ports.write(Promotion.begin(spec.name, spec.text, control, rules, wall_ms()))
        ended = drive_promotion(ports, stop, _Lines())
    if tracker is not None:
        tracker.export(promotion_run(ended), Path())
    if not ended.ended:
        click.echo("stopped: run the same command again to continue", err=True)
    if ended.target != ended.model or not ended.ended:
        raise click.exceptions.Exit(EXIT_ROLLED_BACK)


def promotion(
    kafka: KafkaOptions,
    model: str = argument(help="Model of the promotion.", metavar="MODEL"),
    rollback: bool = setting(False, "Switch the traffic back to the control, at any stage."),
) -> None:
    """Print the decisions of a promotion, with their reasons, or roll it back.

    After a rollback, a running `promote` of this model ends.
    """

    show_warnings_only()
    settings = kafka.settings()
    if rollback:
        click.echo(_line(_rolled_back(settings, model)))
    else:
        for each in _promotion(settings, model).decisions:
            click.echo(_line(each))


def _rolled_back(kafka: "KafkaSettings", model: str) -> "PromotionDecision":
    from headrace.serving.promotion.promotion_controller import KafkaPromotionPorts
    from headrace.serving.promotion.promotion_state import PromotionStage

    state = _promotion(kafka, model)
    with KafkaPromotionPorts(kafka, model, state.control, lambda: True) as ports:
        state = _promotion(kafka, model)  # the controller is fenced now
        if state.stage is not PromotionStage.ROLLED_BACK:
            state = state.moved(PromotionStage.ROLLED_BACK, "by an operator", wall_ms())
            ports.write(state)
    return state.decisions[-1]


class _Lines:
    """Prints each decision once, and what the promotion waits for.

    Figures change at every look. A line follows only if it waits for other things than before, or
    after `_WAITING_EVERY_S`.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._decisions, self._now_s = 0, now_s
        self._waiting, self._told_s = "", 0.0

    def __call__(self, state: "Promotion", waiting: str) -> None:
        for each in state.decisions[self._decisions :]:
            click.echo(_line(each))
        kind = f"{len(state.decisions)} {_FIGURES.sub('', waiting)}"
        late = self._now_s() - self._told_s > _WAITING_EVERY_S
        if waiting and (kind != self._waiting or late):
            click.echo(f"  waits for {waiting}", err=True)
            self._waiting, self._told_s = kind, self._now_s()
        self._decisions = len(state.decisions)


def _line(decision: "PromotionDecision") -> str:
    at = datetime.fromtimestamp(decision.time_ms / 1000, UTC)
    stage = str(decision.stage)
    if decision.stage == "canary":
        stage = f"canary, {100 * decision.share:g} % of the requests"
    return f"{at:%Y-%m-%d %H:%M:%S} UTC  {stage}: {decision.reason}"


def _winner(experiment: "Experiment", arm: str, run: Path | None) -> "ArmPlan":
    """Return the plan of an arm. Raises BadOption."""
    from headrace.learner.experiments.run_folder import read_history

    begun = {} if run is None else {r.name: r for r in read_history(run) if r.kind == "begun"}
    if not arm and run is not None:
        better = [r for r in read_history(run) if r.kind == "better"]
        if not better:
            raise BadOption(f"{run}: expected an arm found better, got none: name an arm")
        arm = min(better, key=lambda record: record.difference or 0.0).name
    names = list(experiment.listed)
    if arm in names:
        return experiment.plan(names.index(arm) + 1)
    if arm in begun and arm != "control":
        return experiment.plan(begun[arm].arm, begun[arm].settings)
    known = ", ".join([*names, *(name for name in begun if name not in (*names, "control"))])
    raise BadOption(f"expected an arm ({known or 'none is listed: give --run'}), got {arm!r}")


def _write_spec(path: Path, text: str) -> None:
    """Write the spec of the arm. Raises BadOption if the file has another one."""
    if path.exists() and path.read_text("utf-8") != text:
        raise BadOption(f"{path}: expected no file, or the spec of the arm, got another spec")
    path.write_text(text, "utf-8")
    click.echo(f"wrote {path}", err=True)


def _saved(
    experiment: "Experiment", plan: "ArmPlan", run: Path | None, kafka: "KafkaSettings"
) -> "SavedArm | str":
    """Return the arm with its rows, or why the model begins without them. Raises BadOption."""
    from headrace.ingest.kafka.protocols import PartitionAssigned
    from headrace.ingest.kafka.reading.consumer import KafkaReader
    from headrace.ingest.kafka.topics import examples_topic
    from headrace.learner.experiments.live.saved_arm import SavedArm, read_saved_arm

    found = "no --run" if run is None else read_saved_arm(run, plan)
    if not isinstance(found, SavedArm):
        return found
    topic = examples_topic(experiment.control.name)
    with closing(KafkaReader(kafka, None, [topic])) as reader:
        sources = {each.source for each in reader.poll(0.0) if isinstance(each, PartitionAssigned)}
        firsts = {source.partition: reader.bounds(source)[0] for source in sources}
        lost = found.lost(reader.topic_id(topic), firsts)
    if lost:
        raise BadOption(
            f"arm {plan.name}: expected the examples behind its position in {topic}, but {lost}. "
            "Continue the run until its next save, or begin without its rows: --fresh"
        )
    return found


def _prepare(
    experiment: "Experiment",
    plan: "ArmPlan",
    kafka: "KafkaSettings",
    redis: str,
    saved: "SavedArm | str",
) -> None:
    """Create the topics and rows of the model, in as many buckets as the control has.

    saved: the arm, or why the model begins without its rows. Can be repeated.
    """
    from headrace.ingest.kafka.topics import (
        ensure_topics,
        examples_topic,
        partition_counts,
        topics_for,
    )
    from headrace.pserver.store import Shape

    control, spec = experiment.control.name, plan.spec
    topic = examples_topic(control)
    counts = partition_counts(kafka, [topic])
    if topic not in counts:
        raise BadOption(f"expected the topic {topic} of the control, got none")
    ensure_topics(kafka, topics_for(spec.name, counts[topic]))
    with closing(open_store(redis, control, read_only=True)) as store:
        buckets = store.shape().buckets
    shape = Shape(spec.name, buckets, spec.width, spec.fingerprint, spec.text)
    with closing(open_store(redis, spec.name)) as store:
        if isinstance(saved, str):
            store.create(shape)
            said = f"begins without rows ({saved}), and learns the events that Kafka retains"
        elif saved.load(store, shape):
            said = f"begins with the arm's rows, after {counted(saved.examples, 'example')}"
        else:
            said = "has rows already, and keeps them"
    click.echo(f"{spec.name} {said}", err=True)


def _rows_ready(model: str, redis: str) -> Callable[[], bool]:
    from headrace.pserver.errors import StoreError

    def ready() -> bool:
        try:
            with closing(open_store(redis, model, read_only=True)) as store:
                return not store.missing()
        except StoreError:
            return False

    return ready


def _promotion(kafka: "KafkaSettings", model: str) -> "Promotion":
    from headrace.serving.promotion.promotion_controller import read_promotion_state

    state = read_promotion_state(kafka, model).promotion
    if state is None:
        raise BadOption(f"expected the model of a promotion, got {model}")
    return state


def _say_processes(
    name: str,
    control: str,
    kafka: "KafkaSettings",
    places: tuple[Path, str, str],
    window_s: int,
) -> None:
    """Print the processes that the model needs, as commands with the addresses of this one.

    places: the file of the model's spec, and the addresses of Kafka and the store.
    """
    model, at_kafka, at_redis = places
    continues = _learns_from(control, name, kafka, at_redis)
    said = f"these processes of {name} must run"
    if continues:
        said += f", and the joiner of {control}, whose examples it learns"
    click.echo(f"{said}:", err=True)
    examples_of = control if continues else ""
    for words in process_commands(model, examples_of, window_s, at_kafka, at_redis):
        click.echo(f"  {shlex.join(words)}", err=True)


def process_commands(
    model: Path, examples_of: str, window_s: int, kafka: str, redis: str
) -> list[list[str]]:
    """Return the commands of a promoted model, in the order in which they may be started.

    examples_of: the control whose examples it learns; empty: it has a joiner.
    """
    spec, at_kafka = ["--model", str(model)], kafka_words(kafka)
    examples = ["--examples-of", examples_of] if examples_of else []
    window = [] if window_s == _WINDOW_S else ["--window", str(window_s)]
    joiner = [] if examples_of else [["headrace", "ingest", "join", *spec, *at_kafka]]
    both = [*at_kafka, *redis_words(redis)]
    return [
        ["headrace", "pserver", "keep", *spec, *both],
        *joiner,
        ["headrace", "learner", "run", *spec, *examples, *both],
        ["headrace", "evaluate", "run", *spec, *examples, *window, *at_kafka],
    ]


def _learns_from(control: str, model: str, kafka: "KafkaSettings", redis: str) -> bool:
    """Return whether the rows of a model contain examples of the control."""
    from headrace.ingest.kafka.reading.consumer import KafkaReader
    from headrace.ingest.kafka.topics import examples_topic
    from headrace.pserver.store import BucketAnswer

    topic = examples_topic(control)
    with closing(KafkaReader(kafka, None, [topic])) as reader:
        reader.poll(0.0)
        identity = reader.topic_id(topic)
    with closing(open_store(redis, model, read_only=True)) as store:
        answers = store.marks(range(store.shape().buckets))
    return any(
        source.startswith(f"{identity}/")
        for each in answers
        if isinstance(each, BucketAnswer)
        for source in each.marks
    )
