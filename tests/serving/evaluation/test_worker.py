"""Evaluation workers on a real Kafka: totals equal a recount after kills and takeovers."""

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from headrace.deploy.cli.main import app
from headrace.deploy.local.services.kafka import KafkaNode
from headrace.serving.evaluation.messages import LEARNED
from headrace.serving.evaluation.window_pane import WHOLE, PaneSummary, combine
from headrace.serving.evaluation.windows import WindowMetrics, read_published, total
from tests.running_server import jars, running_server
from tests.serving.evaluation.evaluated_model import EvaluatedModel, Worker
from tests.serving.evaluation.recount import recount
from tests.serving.evaluation.streams import ALIASES, Traffic, traffic

SEED = 20
A_FEW = 6
GRACE_S = 30.0
"""From SIGTERM to SIGKILL in Kubernetes."""


@pytest.fixture
def evaluated(kafka: str, fresh_name: Callable[[str], str], tmp_path: Path) -> EvaluatedModel:
    """A model with topics and no worker."""
    return EvaluatedModel(kafka, fresh_name("evaluated"), tmp_path)


@pytest.fixture
def workers() -> Iterator[list[Worker]]:
    """The workers of a test; none outlives it."""
    started: list[Worker] = []
    yield started
    for each in started:
        if each.process.poll() is None:
            each.kill()


def truth(made: Traffic) -> PaneSummary:
    """A recount of all committed batches."""
    return recount(made.examples, made.scores, made.predictions)


def shown(evaluated: EvaluatedModel) -> int:
    """Impressions in the table."""
    return total(evaluated.table()).seen.get(WHOLE, (0, 0))[0]


def write_until_noticed(
    evaluated: EvaluatedModel, made: Traffic, begin: int, end: int, worker: Worker
) -> None:
    """Write batches and wait for most of them, so that a kill comes in the middle."""
    before = shown(evaluated)
    for at in range(begin, end - A_FEW):
        evaluated.write(made.batches[at : at + 1])
    evaluated.until(lambda: shown(evaluated) > before, "something new in the table", [worker])
    for at in range(end - A_FEW, end):
        evaluated.write(made.batches[at : at + 1])


def killed(evaluated: EvaluatedModel, workers: list[Worker], made: Traffic, times: int) -> None:
    """Kill workers in the middle of the stream; then let one reach the end."""
    aborted = traffic(SEED + 1, minutes=1, requests_per_minute=40, fields=evaluated.spec.fields)
    part = len(made.batches) // (times + 1)
    for number in range(times):
        workers.append(evaluated.worker("one"))
        write_until_noticed(evaluated, made, number * part, (number + 1) * part, workers[-1])
        workers[-1].kill()
        evaluated.write(aborted.batches, abort=True)
        evaluated.abort_rows(aborted.batches)
    workers.append(evaluated.worker("one"))
    for at in range(times * part, len(made.batches)):
        evaluated.write(made.batches[at : at + 1])
    expected = truth(made)
    evaluated.until(
        lambda: total(evaluated.table()) == expected, "the totals of the recount", workers[-1:]
    )
    assert evaluated.table().state.late == 0


def test_an_evaluation_worker_that_was_killed_counts_and_publishes_everything_once(
    evaluated: EvaluatedModel, workers: list[Worker], capsys: pytest.CaptureFixture[str]
) -> None:
    made = traffic(SEED, minutes=9, requests_per_minute=20, fields=evaluated.spec.fields)
    killed(evaluated, workers, made, times=1)

    def settled() -> bool:
        # minutes are closed as time goes by, since all sources are at their end
        mine = [each for each in read_published(evaluated.kafka) if each.model == evaluated.name]
        hours = [each for each in mine if each.until == "settled" and each.window == "1h"]
        closed = combine(evaluated.table().closed.values()).seen[WHOLE][0]
        return max((each.shown for each in hours), default=0) == closed

    evaluated.until(settled, "figures of the settled hour", workers[-1:])
    assert workers[-1].stop() == 0
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
def test_evaluation_workers_that_take_over_from_each_other_count_everything_once(
    evaluated: EvaluatedModel, workers: list[Worker]
) -> None:
    made = traffic(SEED + 2, minutes=16, requests_per_minute=40, fields=evaluated.spec.fields)
    quarter = len(made.batches) // 4
    workers += [evaluated.worker("one"), evaluated.worker("two")]
    write_until_noticed(evaluated, made, 0, quarter, workers[0])
    workers[0].kill()
    write_until_noticed(evaluated, made, quarter, 2 * quarter, workers[1])
    workers.append(evaluated.worker("one"))
    write_until_noticed(evaluated, made, 2 * quarter, 3 * quarter, workers[2])
    assert workers[1].stop() == 0
    for at in range(3 * quarter, len(made.batches)):
        evaluated.write(made.batches[at : at + 1])
    expected = truth(made)
    evaluated.until(
        lambda: total(evaluated.table()) == expected, "the totals of the recount", workers[2:]
    )
    assert evaluated.table().state.late == 0
    assert workers[2].stop() == 0


@pytest.mark.long
def test_an_evaluation_worker_stops_within_the_grace_period_though_kafka_is_gone(
    stack_directory: Path, tmp_path: Path, workers: list[Worker]
) -> None:
    node = KafkaNode(stack_directory / "gone", jars(), remove=stack_directory)
    with running_server(node):
        evaluated = EvaluatedModel(node.address, "gone", tmp_path)
        made = traffic(SEED, minutes=3, requests_per_minute=20, fields=evaluated.spec.fields)
        workers.append(evaluated.worker("one"))
        write_until_noticed(evaluated, made, 0, len(made.batches), workers[-1])
    assert workers[-1].process.poll() is None
    workers[-1].process.terminate()
    assert workers[-1].process.wait(GRACE_S) == 0, evaluated.log_path.read_text()[-2000:]
