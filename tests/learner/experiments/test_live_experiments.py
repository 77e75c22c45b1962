"""Live experiments: one order of all partitions, kills, replays, stops, and the published history.

Kafka is in memory here: partitions that grow while a runner reads, and a topic of experiments.
"""

import itertools
import random
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.ingest.examples.batch import Examples, unpack
from headrace.ingest.kafka.fakes import ListWriter
from headrace.ingest.kafka.protocols import Record, Source
from headrace.learner.errors import ExamplesExpired, LearnerError
from headrace.learner.experiments.arm import Arm
from headrace.learner.experiments.live.history_topic import forget, request_stop, stop_requested_by
from headrace.learner.experiments.live.live_process import no_examples
from headrace.learner.experiments.live.saved_arm import SavedArm, read_saved_arm
from headrace.learner.experiments.published_history import PublishedHistory
from headrace.learner.local.in_memory_model import InMemoryModel
from headrace.pserver.memory_store import MemoryStore
from headrace.pserver.replica.replica import Replica
from headrace.pserver.store import Shape
from tests.effort import LONG, seeds
from tests.learner.experiments.experiment_runs import write_files
from tests.learner.experiments.live_broker import PARTITIONS, TOPIC, Broker, Killed


@pytest.mark.thorough
@pytest.mark.parametrize("seed", seeds(3))
def test_a_live_experiment_killed_anywhere_decides_as_one_that_was_not(
    tmp_path: Path, seed: int
) -> None:
    experiment = write_files(tmp_path)
    whole = Broker(experiment, seed)
    result = whole.run(tmp_path / "whole")
    killed, dice = Broker(experiment, seed), np.random.default_rng(seed)
    killed.records = whole.records
    killed._coming.clear()
    for _ in range(6):
        before = killed.published().lines
        steps, save_every_s = int(dice.integers(1, 18)), float(dice.choice([0.0, 0.02]))
        with pytest.raises(Killed):
            killed.run(tmp_path / "killed", kill_after=steps, save_every_s=save_every_s)
        assert killed.published().lines[: len(before)] == before, f"seed {seed}"
    again = killed.run(tmp_path / "killed")
    assert result is not None
    assert again is not None
    assert again.loss == result.loss
    assert killed.published().lines == whole.published().lines, f"seed {seed}"
    assert {"begun", "scored", "rung", "stopped", "ended"} <= {
        record.kind for record in whole.published().records
    }


@pytest.mark.parametrize("seed", seeds(4 if LONG else 2))
def test_a_lost_folder_is_replayed_with_late_batches_where_they_were_learned(
    tmp_path: Path, seed: int
) -> None:
    broker, dice = Broker(write_files(tmp_path), seed), np.random.default_rng(seed)
    broker.hold_s, broker.pauses = 0.0, 0.7
    for kill in range(5):
        before = broker.published().lines
        with pytest.raises(Killed):
            broker.run(tmp_path / f"run{kill // 2}", kill_after=int(dice.integers(5, 15)))
        assert broker.published().lines[: len(before)] == before, f"seed {seed}"
    broker.run(tmp_path / "run2")
    published = broker.published()
    assert any(rest.startswith("late/") for rest, _ in published.order), "the seed is of use"
    sent = len(broker.experiments.sent)
    request_stop(broker.experiments, "rates")
    broker.run(tmp_path / "lost", impatient=True)
    assert broker.published()[::2] == published[::2], f"seed {seed}"
    assert len(broker.experiments.sent) == sent + 1


def test_another_experiment_under_the_same_name_is_refused(tmp_path: Path) -> None:
    broker = Broker(write_files(tmp_path))
    broker.run(tmp_path / "first")
    broker.experiment = write_files(tmp_path, (tmp_path / "experiment.toml").read_text() + "\n")
    with pytest.raises(LearnerError, match="begin again with --restart"):
        broker.run(tmp_path / "second")


def test_an_experiment_that_was_asked_to_stop_ends_with_the_result_so_far(tmp_path: Path) -> None:
    broker = Broker(write_files(tmp_path))
    request_stop(broker.experiments, "rates")
    request_stop(broker.experiments, "others")
    assert asked_to_stop(broker) == [True, None]
    result = broker.run(tmp_path / "run")
    assert result is not None
    assert broker.published().stop
    assert broker.published().records[-1].kind == "ended"
    forget(broker.experiments, "rates", broker.published())
    assert broker.published() == PublishedHistory()
    assert [each for each in asked_to_stop(broker) if each is not None] == [True, False]


def asked_to_stop(broker: Broker) -> list[bool | None]:
    """Whether each record of the topic asks the experiment to stop; None: it does neither."""
    sent = broker.experiments.sent
    records = [Record(each.target, 0, 0, each.value, each.key) for each in sent]
    return [stop_requested_by(each, "rates") for each in records]


def test_partitions_are_merged_in_the_order_of_their_event_times(tmp_path: Path) -> None:
    broker = Broker(write_files(tmp_path))
    while broker.append(5):
        pass
    source = broker.source()
    reached = []
    for block in source.blocks(source.first()):
        if not len(block.examples):
            break
        reached.append(block.examples.watermark_ms)
    assert reached == sorted(reached)
    assert len(reached) > 20


def test_a_live_experiment_names_the_examples_that_kafka_did_not_deliver(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broker = Broker(write_files(tmp_path))
    while broker.append(5):
        pass
    source = broker.source()

    def warned() -> list[str]:
        caplog.clear()
        for block in source.blocks(source.first()):
            if not len(block.examples):
                break
        return [text for text in caplog.messages if "are missing" in text]

    assert not warned()
    removed = broker.records[Source(TOPIC, 1)].pop(3)
    after = broker.records[Source(TOPIC, 1)][3].offset
    count = len(unpack(removed.value, broker.experiment.control.fields))
    assert warned() == [f"{TOPIC}/1@{after}: {count} examples before it are missing"]


def test_an_idle_partition_holds_others_up_for_a_bounded_time(tmp_path: Path) -> None:
    broker = Broker(write_files(tmp_path))
    broker.append(40)
    idle = Source(TOPIC, 2)
    broker.records[idle] = broker.records[idle][:1]
    broker.hold_s = 30.0
    source = broker.source()

    def delivered() -> int:
        blocks = source.blocks(source.first())
        return sum(1 for _ in itertools.takewhile(lambda block: len(block.examples), blocks))

    of = sum(map(len, broker.records.values()))
    assert delivered() < of
    broker.now_ms += 31_000
    assert delivered() == of


@pytest.mark.parametrize("seed", seeds(3))
def test_later_arms_learn_in_the_order_in_which_the_control_took_late_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    learned: dict[int, dict[int, str]] = defaultdict(dict)
    step = Arm.step

    def noted(arm: Arm, examples: Examples, *rest: Any) -> None:
        learned[arm.plan.number][arm.examples] = examples.impression_ids[0].as_py()
        step(arm, examples, *rest)

    monkeypatch.setattr(Arm, "step", noted)
    broker, dice = Broker(write_files(tmp_path), seed), np.random.default_rng(seed)
    broker.hold_s, broker.pauses = 0.0, 0.7
    for _ in range(3):
        with pytest.raises(Killed):
            broker.run(tmp_path / "run", kill_after=int(dice.integers(5, 15)))
    broker.run(tmp_path / "run")
    assert len(learned) == 8
    for number, batches in learned.items():
        assert batches.items() <= learned[0].items(), f"seed {seed}, arm {number}"


def test_examples_that_kafka_deleted_are_refused_and_begin_no_arms(tmp_path: Path) -> None:
    broker = Broker(write_files(tmp_path))
    broker.append(20)
    source = broker.source()
    assert source.whole()
    del broker.records[Source(TOPIC, 1)][0]
    assert not source.whole()
    with pytest.raises(ExamplesExpired, match="expected examples from offset 0, got"):
        next(source.blocks(source.first()))


ARMS = """
[experiment]
name = "rates"
control = "control.toml"
[arm.slow]
"optimizer.alpha" = 0.001
[arm.fewer]
"fields.tags" = "off"
[rungs]
first = 1_000_000
"""


def test_the_saved_rows_of_an_arm_become_a_model_that_continues_at_its_position(
    tmp_path: Path,
) -> None:
    experiment = write_files(tmp_path, ARMS)
    broker = Broker(experiment)
    assert read_saved_arm(tmp_path / "run", experiment.plan(1)) == "the run has no saved state"
    with pytest.raises(Killed):
        broker.run(tmp_path / "run", kill_after=15)
    plan = experiment.plan(1)
    found = read_saved_arm(tmp_path / "run", plan)
    assert isinstance(found, SavedArm)
    source, learned, alone = broker.source(), 0, InMemoryModel(plan.spec)
    for block in source.blocks(source.first()):
        assert len(block.examples), "the position of the arm was not reached"
        if block.after.offsets == found.offsets:
            break
        learned += len(alone.learn(block.examples))
    learned += len(alone.learn(block.examples))
    assert 0 < learned == found.examples
    assert found.marks == {f"id/{at}": offset for at, offset in enumerate(found.offsets) if offset}

    spec, dice = plan.spec, random.Random(0)
    shape = Shape(spec.name, 64, spec.width, spec.fingerprint, spec.text)
    store = MemoryStore(clock_ms=lambda: 0, nonces=lambda: dice.randbytes(8))
    assert (found.load(store, shape), found.load(store, shape)) == (64, 0)
    assert all(getattr(each, "marks", None) == found.marks for each in store.marks(range(64)))
    replica = Replica(store, shape)
    while not replica.complete:
        replica.poll()
    rows = replica.table.everything().existing()
    for name in rows._fields:
        assert np.array_equal(getattr(rows, name), getattr(alone.rows, name)), name


def test_an_arm_that_cannot_continue_says_why(tmp_path: Path) -> None:
    experiment = write_files(tmp_path, ARMS)
    broker = Broker(experiment)
    broker.run(tmp_path / "run")
    fewer, slow = experiment.plan(2), experiment.plan(1)
    assert read_saved_arm(tmp_path / "run", fewer) == (
        "the arm has other fields than the control's examples"
    )
    other = replace(slow, spec=fewer.spec)
    assert read_saved_arm(tmp_path / "run", other) == "the spec changed since the run"
    gone = replace(slow, number=3)
    assert read_saved_arm(tmp_path / "run", gone) == "the arm has ended, and its rows were not kept"
    found = read_saved_arm(tmp_path / "run", slow)
    assert isinstance(found, SavedArm)
    held = dict.fromkeys(range(PARTITIONS), 0)
    assert not found.lost("id", held)
    assert found.lost("other", held) == "the topic was created again since"
    held[1] = found.offsets[1] + 1
    assert "Kafka deleted examples of partitions [1]" in found.lost("id", held)


def test_a_restart_removes_the_last_record_first() -> None:
    lines = tuple(b'{"kind":"begun","arm":%d,"name":"a"}' % number for number in range(3))
    writer = ListWriter()
    forget(writer, "x", PublishedHistory(lines))
    assert [each.key for each in writer.sent][:3] == [
        *(b"x/00000002", b"x/00000001", b"x/00000000")
    ]


@pytest.mark.parametrize("held", [[], [(0, 0), (7, 7)]])
def test_a_control_without_examples_is_named_with_the_way_to_get_some(
    held: list[tuple[int, int]],
) -> None:
    said = no_examples("news-slow", held)
    assert "topic examples.news-slow: expected examples of the control news-slow, got none" in said
    assert "start its joiner, `headrace ingest join --model FILE`" in said
    assert no_examples("news-slow", [*held, (7, 8)]) == ""
