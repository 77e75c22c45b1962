"""Evaluation workers on a real Kafka: totals equal a recount after kills and takeovers."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest

from headrace.deploy.cli.main import app
from headrace.deploy.local.services.kafka import KafkaNode
from headrace.serving.evaluation.messages import LEARNED
from headrace.serving.evaluation.window_pane import WHOLE, PaneSummary, combine
from headrace.serving.evaluation.windows import WindowMetrics, read_published, total
from tests.deploy.command import Running
from tests.running_server import jars, running_server
from tests.serving.evaluation.evaluated_model import EvaluatedModel
from tests.serving.evaluation.recount import recount
from tests.serving.evaluation.streams import ALIASES, Traffic, traffic

SEED = 20
A_FEW = 6
GRACE_S = 30.0
"""From SIGTERM to SIGKILL in Kubernetes."""


@pytest.fixture
def evaluated(
    kafka: str, fresh_name: Callable[[str], str], tmp_path: Path
) -> Iterator[EvaluatedModel]:
    """A model with topics and no worker. No worker outlives its test."""
    with ExitStack() as stack:
        yield EvaluatedModel(kafka, fresh_name("evaluated"), tmp_path, stack)


def stopped(worker: Running) -> int:
    worker.process.terminate()
    return worker.end()


def truth(made: Traffic) -> PaneSummary:
    """A recount of all committed batches."""
    return recount(made.examples, made.scores, made.predictions)


def shown(evaluated: EvaluatedModel) -> int:
    """Impressions in the table."""
    return total(evaluated.table()).seen.get(WHOLE, (0, 0))[0]


def write_until_noticed(
    evaluated: EvaluatedModel, made: Traffic, begin: int, end: int, worker: Running
) -> None:
    """Write batches and wait for most of them, so that a kill comes in the middle."""
    before = shown(evaluated)
    for at in range(begin, end - A_FEW):
        evaluated.write(made.batches[at : at + 1])
    evaluated.until(lambda: shown(evaluated) > before, "something new in the table", worker)
    for at in range(end - A_FEW, end):
        evaluated.write(made.batches[at : at + 1])


def killed(evaluated: EvaluatedModel, made: Traffic, times: int) -> Running:
    """Kill workers in the middle of the stream; then let one reach the end, and return it."""
    aborted = traffic(SEED + 1, minutes=1, requests_per_minute=40, fields=evaluated.spec.fields)
    part = len(made.batches) // (times + 1)
    for number in range(times):
        worker = evaluated.worker("one")
        write_until_noticed(evaluated, made, number * part, (number + 1) * part, worker)
        worker.process.kill()
        evaluated.write(aborted.batches, abort=True)
        evaluated.abort_rows(aborted.batches)
    worker = evaluated.worker("one")
    for at in range(times * part, len(made.batches)):
        evaluated.write(made.batches[at : at + 1])
    expected = truth(made)
    evaluated.until(
        lambda: total(evaluated.table()) == expected, "the totals of the recount", worker
    )
    assert evaluated.table().state.late == 0
    return worker


def test_an_evaluation_worker_that_was_killed_counts_and_publishes_everything_once(
    evaluated: EvaluatedModel, capsys: pytest.CaptureFixture[str]
) -> None:
    made = traffic(SEED, minutes=9, requests_per_minute=20, fields=evaluated.spec.fields)
    worker = killed(evaluated, made, times=1)

    def settled() -> bool:
        # minutes are closed as time goes by, since all sources are at their end
        mine = [each for each in read_published(evaluated.kafka) if each.model == evaluated.name]
        hours = [each for each in mine if each.until == "settled" and each.window == "1h"]
        closed = combine(evaluated.table().closed.values()).seen[WHOLE][0]
        return max((each.shown for each in hours), default=0) == closed

    evaluated.until(settled, "figures of the settled hour", worker)
    assert stopped(worker) == 0, worker.output
    assert total(evaluated.table()) == truth(made)
    show = ["evaluate", "show", "--kafka", evaluated.kafka.bootstrap, "--only", evaluated.name]
    app([*show, "--slices", "--json"], standalone_mode=False)
    lines = [
        msgspec.json.decode(line, type=WindowMetrics) for line in capsys.readouterr().out.split()
    ]
    assert {each.alias for each in lines} == {LEARNED, *ALIASES}
    assert {each.slice for each in lines} > {"all", "device=phone", "device=*absent"}
    app(show, standalone_mode=False)
    assert "Live evaluation" in capsys.readouterr().out


@pytest.mark.long
def test_an_evaluation_worker_stops_within_the_grace_period_though_kafka_is_gone(
    stack_directory: Path, tmp_path: Path
) -> None:
    node = KafkaNode(stack_directory / "gone", jars(), remove=stack_directory)
    with ExitStack() as stack:
        with running_server(node):
            evaluated = EvaluatedModel(node.address, "gone", tmp_path, stack)
            made = traffic(SEED, minutes=3, requests_per_minute=20, fields=evaluated.spec.fields)
            worker = evaluated.worker("one")
            write_until_noticed(evaluated, made, 0, len(made.batches), worker)
        assert worker.process.poll() is None
        worker.process.terminate()
        assert worker.process.wait(GRACE_S) == 0, worker.output[-2000:]
