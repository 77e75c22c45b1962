"""Arms of one live experiment on several runners: how much faster one runner steps its share.

All arms are logistic regression. One runner learns them alone. Then a group of one learns them, and
leaves its messages. A member of a group of k then reads these messages, and learns only its share
of the arms, while the sums of the others are already there. So the processor time of one member is
measured by itself, without waiting. It includes decoding, which each member repeats, and no saves.
"""

from __future__ import annotations

import tempfile
import threading
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.ingest.examples.batch import pack
from headrace.ingest.kafka import ListReader, ListWriter, Record, Source
from headrace.learner.experiments.experiment_file import load_experiment
from headrace.learner.experiments.live.group.group_folder import FollowerFolder
from headrace.learner.experiments.live.group.group_member import GroupMember, GroupTask
from headrace.learner.experiments.live.group.group_ports import (
    TOKENS,
    GroupPorts,
    MemoryLog,
    MemoryMembership,
    MemoryRegistry,
)
from headrace.learner.experiments.live.history_topic import PublishedHistory
from headrace.learner.experiments.live.live_run import LiveRun
from headrace.learner.experiments.live.topic_source import TopicSource
from tests.bench.learner.stream import LR, batches_of, make_stream, stream_spec

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace.learner.experiments.history import ExperimentProgress

_ROUNDS = 4
ARMS = 23  # with the control, each of two or three runners has the same number
FILE = f"""
[experiment]
name = "bench"
control = "bench.toml"
arms = {ARMS}
slots = {ARMS}
[space]
optimizer.alpha = {{ log = [0.01, 1.0] }}
[rungs]
first = 100_000_000
[decision]
batch_s = 3600
cycle_s = 86_400
"""


class RunnersBench:
    """The experiment, and its topic in memory."""

    def __init__(self, folder: Path, examples: int) -> None:
        spec = stream_spec(more=LR)
        (folder / "bench.toml").write_text(spec.text)
        (folder / "experiment.toml").write_text(FILE)
        self._folder, self._experiment = folder, load_experiment(folder / "experiment.toml")
        partition = Source("examples.bench", 0)
        self._records = {
            partition: [
                Record(partition, offset, 0, pack(replace(each, watermark_ms=offset + 1)))
                for offset, each in enumerate(batches_of(spec, make_stream(examples, 1)))
            ]
        }
        self._log, self._registry = list[bytes](), MemoryRegistry()

    def alone(self) -> float:
        """Return the processor seconds of a runner that is alone."""
        folder = FollowerFolder(self._folder)  # saves nothing, as the others of a group
        with closing(self._source()) as source:
            run = LiveRun(self._experiment, source, folder, 1e9)
            began = time.process_time()
            run.run(threading.Event(), _ends())
            return time.process_time() - began

    def member(self, runners: int) -> float:
        """Return the processor seconds of one of so many runners; first of one."""
        folder = self._folder / f"of-{runners}"
        folder.mkdir()
        if self._registry.record is not None:
            (folder / "group-id").write_text(self._registry.record.folder)
        task = GroupTask(
            *(self._experiment, folder, 1e9, ListWriter(), PublishedHistory),
            begins=lambda *_: (0,),
            open_source=lambda _: closing(self._source()),
        )
        tokens = frozenset(range(0, TOKENS, runners))
        ports = GroupPorts(
            *(MemoryLog(self._log), MemoryMembership(tokens), self._registry),
            *(time.monotonic, lambda: None),
        )
        began = time.process_time()
        GroupMember(task, ports, threading.Event(), _ends()).run()
        return time.process_time() - began

    def _source(self) -> TopicSource:
        fields = self._experiment.control.fields
        return TopicSource(
            *(lambda: ListReader(self._records), "examples.bench", "id", fields, (0,)),
            hold_s=0.0,
            now_ms=lambda: 1,
        )


def _ends() -> Callable[[ExperimentProgress], bool]:
    """Return a callback that ends a run when nothing is left to learn."""
    before = -1

    def tell(progress: ExperimentProgress) -> bool:
        nonlocal before
        idle, before = progress.steps == before and progress.steps > 0, progress.steps
        return idle

    return tell


def runner_speedups(examples: int, runners: Sequence[int] = (1, 2, 3)) -> dict[str, float]:
    """Return by number of runners: time of a runner alone over that of one member of a group.

    The shortest of some rounds each.
    """
    alone, members = float("inf"), dict.fromkeys(runners, float("inf"))
    for _ in range(_ROUNDS):
        with tempfile.TemporaryDirectory() as folder:
            bench = RunnersBench(Path(folder), examples)
            alone = min(alone, bench.alone())
            for many in runners:
                members[many] = min(members[many], bench.member(many))
    return {str(many): round(alone / member, 2) for many, member in members.items()}
