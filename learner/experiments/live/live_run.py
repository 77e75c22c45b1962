"""A runner over a topic, and what ends it."""

import logging
import threading
from collections.abc import Callable

from headrace.learner.experiments.experiment_file import Experiment
from headrace.learner.experiments.history import ExperimentProgress, ExperimentResult
from headrace.learner.experiments.live.history_topic import PublishedFolder, first_record
from headrace.learner.experiments.live.topic_source import FirstPass, TopicPosition, TopicSource
from headrace.learner.experiments.run_folder import RunFolder
from headrace.learner.experiments.runner import ExperimentRunner

log = logging.getLogger(__name__)


class LiveRun:
    """A runner over a topic, and what ends it."""

    def __init__(
        self,
        experiment: Experiment,
        source: TopicSource,
        folder: RunFolder,
        save_every_s: float = 60.0,
    ) -> None:
        """Continue where the folder says, or begin with a record of the log."""
        self._experiment, self._source = experiment, source
        self._whole = True
        self.runner = ExperimentRunner(experiment, source, folder, save_every_s, self._may_begin)
        position = self.runner.position if self.runner.resumed else None
        front = position if isinstance(position, TopicPosition) else source.first()
        source.first_pass = self.runner.kept(FirstPass(front))
        if isinstance(folder, PublishedFolder):
            source.first_pass = folder.order.at_least(source.first_pass)
            self.runner.keep(source.first_pass)
            folder.taken = source.first_pass
        if not self.runner.resumed:
            topic, topic_id = source.identity.split(" ")[:2]
            begin = first_record(topic, topic_id, source.begins, experiment.fingerprint)
            folder.append([begin])

    def run(
        self, stop: threading.Event, tell: Callable[[ExperimentProgress], bool]
    ) -> ExperimentResult | None:
        """Run until `stop` (returns None), until `tell` returns True, or until no arm is left."""

        def told(progress: ExperimentProgress) -> None:
            stop = tell(progress) and not self.replays
            over = progress.arms == self._experiment.arms or not self._whole
            if stop or (over and not progress.learning):
                position = self.runner.position
                if isinstance(position, TopicPosition):
                    self._source.end_at(position)

        return self.runner.run(stop, told)

    @property
    def replays(self) -> bool:
        """Whether the runner repeats a part of the log that is published.

        A request to stop waits for its end: the runner that published it was not yet stopped.
        """
        position = self.runner.position
        return (
            isinstance(position, TopicPosition)
            and position.offsets != self._source.first_pass.front.offsets
        )

    def _may_begin(self) -> bool:
        # retention never gives back what it deleted
        if self._whole and not self._source.whole():
            self._whole = False
            log.warning("no more arms begin: Kafka deleted the first examples of the experiment")
        return self._whole
