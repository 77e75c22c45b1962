"""Kafka in memory for live experiments: partitions that grow, and a topic of experiments."""

from collections import Counter
from pathlib import Path
from threading import Event

import numpy as np

from headrace.ingest.examples.batch import pack
from headrace.ingest.examples.splitting import part_of
from headrace.ingest.kafka.fakes import ListReader, ListWriter
from headrace.ingest.kafka.protocols import Record, Source
from headrace.learner.batch.sources import FilePosition
from headrace.learner.experiments.experiment_file import Experiment
from headrace.learner.experiments.history import ExperimentProgress, ExperimentResult
from headrace.learner.experiments.live.history_topic import PublishedFolder
from headrace.learner.experiments.live.live_run import LiveRun
from headrace.learner.experiments.live.topic_source import TopicSource
from headrace.learner.experiments.published_history import PublishedHistory, histories_of
from tests.learner.experiments.experiment_runs import log_of

FIRST = FilePosition()
TOPIC = "examples.test"
PARTITIONS = 3


class Killed(Exception):
    """The end of a process between two steps."""


class Broker:
    """A topic of examples that grows, and the topic of experiments."""

    def __init__(self, experiment: Experiment, seed: int = 1, impressions: int = 1500) -> None:
        self.experiment = experiment
        self.records: dict[Source, list[Record]] = {
            Source(TOPIC, number): [] for number in range(PARTITIONS)
        }
        self.experiments = ListWriter()
        self._dice = np.random.default_rng(seed)
        self._coming = [block.examples for block in log_of(experiment, impressions).blocks(FIRST)]
        self.now_ms = 0
        self.hold_s = 1e9
        """Time for which batches wait for an idle partition."""
        self.pauses = 0.0
        """Share of `append` in which a partition gets none of its batches; they come later."""
        self._count = Counter[Source]()
        self._under_way: dict[Source, list[bytes]] = {source: [] for source in self.records}

    def append(self, batches: int = 1) -> bool:
        """Append some batches to random partitions, with gaps of markers; False at the end."""
        for examples in self._coming[:batches]:
            source = Source(TOPIC, int(self._dice.integers(PARTITIONS)))
            reached_ms = int(examples.event_ms.max())
            self.now_ms = max(self.now_ms, reached_ms)
            watermarked = part_of(examples, 0, len(examples))
            object.__setattr__(watermarked, "watermark_ms", reached_ms)
            object.__setattr__(watermarked, "before", self._count[source])
            self._count[source] += len(examples)
            self._under_way[source].append(pack(watermarked))
        del self._coming[:batches]
        for source, under_way in self._under_way.items():
            if not self._coming or self._dice.random() >= self.pauses:
                self._write(source, under_way)
        return bool(self._coming)

    def _write(self, source: Source, under_way: list[bytes]) -> None:
        held = self.records[source]
        for value in under_way:
            offset = held[-1].offset + 1 + int(self._dice.integers(2)) if held else 0
            held.append(Record(source, offset, self.now_ms, value))
        under_way.clear()

    def source(self, begins: tuple[int, ...] = (0,) * PARTITIONS) -> TopicSource:
        """Return the topic as a source."""
        return TopicSource(
            *(self._reader, TOPIC, "id", self.experiment.control.fields, begins),
            hold_s=self.hold_s,
            now_ms=lambda: self.now_ms,
        )

    def _reader(self) -> ListReader:
        reader = ListReader(self.records, largest_poll=7)
        reader.records = self.records  # shared: it grows
        return reader

    def published(self) -> PublishedHistory:
        """Return the published history."""
        sent = [
            Record(each.target, offset, 0, each.value, each.key)
            for offset, each in enumerate(self.experiments.sent)
        ]
        return histories_of(sent).get(self.experiment.name, PublishedHistory())

    def run(
        self,
        folder: Path,
        *,
        kill_after: int = 10**9,
        impatient: bool = False,
        save_every_s: float = 0.0,
    ) -> ExperimentResult | None:
        """Run one process of the runner; each step appends, and it stops with the stream's end.

        impatient: asked to stop from the first step on.
        """
        held = PublishedFolder(folder, self.experiments, self.experiment.name, self.published())
        source, steps, idle = self.source(), 0, 0
        before = -1
        try:
            live = LiveRun(self.experiment, source, held, save_every_s)
            if live.runner.resumed:
                held.publish()

            def tell(progress: ExperimentProgress) -> bool:
                nonlocal steps, idle, before
                steps += 1
                if steps >= kill_after:
                    raise Killed
                more = self.append(int(self._dice.integers(3)))
                idle = idle + 1 if progress.steps == before and not more else 0
                before = progress.steps
                return impatient or idle > 20

            return live.run(Event(), tell)
        finally:
            held.close()
            source.close()
