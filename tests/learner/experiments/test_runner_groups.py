"""Groups of runners decide as one runner does: with kills, late messages and other owners of arms.

Kafka is in memory here, and a seeded scheduler runs one runner at a time (`group_world`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headrace.learner.experiments.live.group.agreement import AT_END, Agreement, Place
from headrace.learner.experiments.live.group.group_arms import UnsharedFolder
from headrace.learner.experiments.live.group.messages import (
    FIRST_PATH,
    Action,
    Order,
    Saved,
    Sums,
    decoded_message,
    encoded_message,
)
from headrace.learner.experiments.run_folder import OtherExperiment
from tests.effort import seeds
from tests.learner.experiments.experiment_runs import write_files
from tests.learner.experiments.group_world import GroupWorld
from tests.learner.experiments.live_broker import Broker, GivenOrder

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("seed", seeds(3))
def test_a_group_whose_runners_are_killed_publishes_the_history_of_one_runner(
    tmp_path: Path, seed: int
) -> None:
    experiment = write_files(tmp_path)
    alone = Broker(experiment, seed)
    expected = alone.run(tmp_path / "alone")
    together = Broker(experiment, seed)
    together.records = alone.records
    together._coming.clear()
    world = GroupWorld(together, seed)
    shared = tmp_path / "shared"
    shared.mkdir()
    for _ in range(1 + seed % 3):
        world.add(shared)
    world.kill_some(shared)
    assert together.published().lines[1:] == alone.published().lines[1:], f"seed {seed}"
    assert {"begun", "scored", "rung", "stopped", "ended"} <= {
        record.kind for record in together.published().records
    }
    results = [each.result for each in world.runners if each.result is not None]
    assert results
    assert all(result == expected for result in results), "runners that outlive it return it"


@pytest.mark.parametrize("seed", seeds(2))
def test_runners_agree_on_an_order_that_only_the_arrival_of_batches_decided(
    tmp_path: Path, seed: int
) -> None:
    broker = Broker(write_files(tmp_path), seed)
    broker.hold_s, broker.pauses = 0.0, 0.7
    world = GroupWorld(broker, seed)
    for _ in range(3):
        world.add(tmp_path)
    world.kill_some(tmp_path)
    results = [each.result for each in world.runners if each.result is not None]
    assert results
    assert all(result == results[0] for result in results), f"seed {seed}"
    assert world.registry.record is not None
    agreement = Agreement(world.registry.record.folder, Place())
    for offset, value in enumerate(world.messages, 1):
        message = decoded_message(value)
        assert message is not None
        agreement.offer(message, offset)
    order = GivenOrder([agreement.orders[step].partition for step in sorted(agreement.orders)])
    assert broker.run_in_order(tmp_path / "alone", order) == broker.published().lines[1:]


def agreed(*messages: Order | Action | Sums | Saved) -> Agreement:
    """Return what messages in this order agree on."""
    agreement = Agreement("run", Place())
    for offset, message in enumerate(messages, 1):
        decoded = decoded_message(encoded_message(message))
        assert decoded == message
        agreement.offer(decoded, offset)
    return agreement


FIRST = Order("run", FIRST_PATH, 1, 0, new_arms=True)
RIVAL = Order("run", FIRST_PATH, 1, 1, new_arms=True)


def test_the_first_of_two_orders_for_a_step_counts_and_sums_of_the_other_are_dropped() -> None:
    agreement = agreed(
        *(FIRST, RIVAL),
        *(Sums("run", RIVAL.after, 1, {3: [0.5]}), Sums("run", FIRST.after, 1, {3: [0.1]})),
        *(Sums("run", FIRST.after, 1, {3: [0.2]}), Sums("other", FIRST.after, 1, {4: [0.3]})),
        Order("run", RIVAL.after, 2, 0, new_arms=True),
    )
    assert agreement.step == 1
    assert agreement.sums(3, 1) == [0.1]
    assert agreement.sums(3, 1) is None, "it is taken once"
    assert agreement.sums(4, 1) is None


def test_sums_are_exact_and_those_at_the_end_of_the_log_are_of_their_own() -> None:
    loss = 0.1 + 0.2
    agreement = agreed(
        *(FIRST, Sums("run", FIRST.after, 1, {3: [loss]})),
        Sums("run", FIRST.after, 1, {3: [1.0]}, at_end=True),
    )
    assert agreement.sums(3, 1) == [loss]
    assert agreement.sums(3, AT_END) == [1.0]


def test_an_action_behind_the_next_order_is_dropped_and_a_save_counts_its_own_arms() -> None:
    save = Action("run", FIRST.after, 1, "save")
    agreement = agreed(
        *(Action("run", FIRST_PATH, 0, "begin"), FIRST, Action("run", FIRST_PATH, 0, "stop")),
        *(Saved("run", FIRST.after, 1, [1]), save, Saved("run", FIRST.after, 1, [2])),
        Saved("run", RIVAL.after, 1, [3]),
    )
    assert [action.kind for action, _ in agreement.actions[0]] == ["begin"]
    assert agreement.actions[1] == [(save, 5)]
    assert agreement.saved == {2}


def test_a_runner_whose_folder_is_not_the_shared_one_is_refused(tmp_path: Path) -> None:
    world = GroupWorld(Broker(write_files(tmp_path)), seed=1)
    for name in ("shared", "own"):
        (tmp_path / name).mkdir()
        world.add(tmp_path / name)
    with pytest.raises(UnsharedFolder, match="that all runners of the group share"):
        world.run()
    for each in world.runners:
        if not each.over:
            world.kill(each)


def test_a_runner_with_another_experiment_file_is_refused(tmp_path: Path) -> None:
    broker = Broker(write_files(tmp_path))
    world = GroupWorld(broker, seed=1)
    world.add(tmp_path)
    world.run(turns=60)
    broker.experiment = write_files(tmp_path, (tmp_path / "experiment.toml").read_text() + "\n")
    world.add(tmp_path)
    with pytest.raises(OtherExperiment, match="Give all runners the same files"):
        world.run()
    for each in world.runners:
        if not each.over:
            world.kill(each)


def test_a_group_does_not_go_on_in_the_folder_of_a_run_without_a_group(tmp_path: Path) -> None:
    broker = Broker(write_files(tmp_path))
    broker.run(tmp_path / "run")
    world = GroupWorld(broker, seed=1)
    world.add(tmp_path / "run")
    with pytest.raises(OtherExperiment, match="got a run without --group"):
        world.run()
