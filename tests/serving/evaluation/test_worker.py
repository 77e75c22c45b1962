"""Workers on a real Kafka: killed at any moment, their totals are those of a recount."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from serving.evaluation.pane import WHOLE
from serving.evaluation.published import read_published
from serving.evaluation.windows import total
from tests.serving.evaluation.recount import recount
from tests.serving.evaluation.scene import Scene, Worker
from tests.serving.evaluation.streams import Traffic, traffic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from serving.evaluation.pane import Summary

SEED = 20


@pytest.fixture
def scene(kafka: str, fresh_name: Callable[[str], str], tmp_path: Path) -> Scene:
    """A model with topics and no worker."""
    return Scene(kafka, fresh_name("evaluated"), tmp_path)


@pytest.fixture
def workers() -> Iterator[list[Worker]]:
    """Those started by a test: none outlives it."""
    started: list[Worker] = []
    yield started
    for each in started:
        if each.process.poll() is None:
            each.kill()


def truth(made: Traffic) -> Summary:
    """A recount over everything that was written and not aborted."""
    return recount(made.examples, made.scores, made.predictions)


def shown(scene: Scene) -> int:
    """Impressions that the table holds."""
    return total(scene.table()).seen.get(WHOLE, (0, 0))[0]


def test_killed_twice_a_worker_has_counted_everything_once(
    scene: Scene, workers: list[Worker]
) -> None:
    made = traffic(SEED, minutes=12, requests_per_minute=40, fields=scene.spec.fields)
    third = len(made.batches) // 3
    parts = [made.batches[:third], made.batches[third : 2 * third], made.batches[2 * third :]]
    never = traffic(SEED + 1, minutes=1, requests_per_minute=40, fields=scene.spec.fields)
    for part in parts:
        before = shown(scene)
        workers.append(scene.worker("one"))
        for at in range(0, len(part), 3):
            scene.write(part[at : at + 3])
            if at == 3:
                scene.write(never.batches, abort=True)
        living = workers[-1:]
        if part is not parts[-1]:
            scene.until(lambda: shown(scene) > before, "something new in the table", living)  # noqa: B023
            living[0].kill()
    expected = truth(made)
    scene.until(lambda: total(scene.table()) == expected, "the totals of the recount", workers[-1:])
    kept = scene.table()
    assert kept.late == 0
    assert len(kept.closed) >= 6, "minutes were closed on the way"

    def settled() -> bool:
        mine = [each for each in read_published(scene.kafka) if each.model == scene.name]
        return any(each.until == "settled" and each.window == "1h" for each in mine)

    scene.until(settled, "figures of the settled hour", workers[-1:])
    assert workers[-1].stop() == 0
    assert total(scene.table()) == expected
