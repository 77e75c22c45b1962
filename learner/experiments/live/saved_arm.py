"""The rows of an arm in the saved state of a live experiment, and the place up to which it learned.

A promoted model continues where its arm was: its buckets get the arm's rows, and marks of the
control's topic of examples at the arm's position. A learner with `--examples-of CONTROL` starts at
the marks, so no example counts twice and none is left out. The runner may go on meanwhile: a state
is complete once it has its name, and the learner repeats what the arm learned since.

Loading can be repeated after a kill, also with a later state. Each bucket brings its own marks, and
only missing buckets are filled.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from headrace.learner.experiments.experiment_file import ArmPlan
from headrace.learner.experiments.live.topic_source import TopicPosition
from headrace.learner.experiments.run_folder import read_state
from headrace.learner.spec.compatibility import check_compatible
from headrace.pserver.snapshots.restoration import in_pieces
from headrace.pserver.store import Shape, Store

if TYPE_CHECKING:
    from headrace.learner.local.in_memory_model import InMemoryModel


class SavedArm(NamedTuple):
    """An arm that learned from a topic."""

    model: InMemoryModel
    topic_id: str
    offsets: tuple[int, ...]
    """First offset of each partition that the arm has not learned."""
    examples: int
    """Learned."""

    @property
    def marks(self) -> dict[str, int]:
        """Marks of a bucket with the arm's rows."""
        named = enumerate(self.offsets)
        return {f"{self.topic_id}/{number}": offset for number, offset in named if offset}

    def lost(self, topic_id: str, firsts: Mapping[int, int]) -> str:
        """Return why a learner cannot continue at the arm's position; empty if it can.

        topic_id: of the topic as it is now. firsts: the first offset that Kafka has, by partition.
        """
        if topic_id != self.topic_id:
            return "the topic was created again since"
        gone = [number for number, offset in enumerate(self.offsets) if firsts[number] > offset]
        if gone:
            return f"Kafka deleted examples of partitions {gone} that the arm has not learned"
        return ""

    def load(self, store: Store, shape: Shape) -> int:
        """Fill the missing buckets of a model with the arm's rows; return how many were filled.

        Raises ModelExists, WrongModel, BucketExists if another process does the same, Unreachable.
        """
        check_compatible(self.model.spec, shape)
        store.begin(shape)
        missing, rows = store.missing(), self.model.rows
        of_row = shape.bucket_of(rows.ids)
        for bucket in missing:
            store.load(bucket, 1, self.marks, in_pieces([rows.chosen(of_row == bucket)]))
        store.finish()
        return len(missing)


def read_saved_arm(folder: Path, plan: ArmPlan) -> SavedArm | str:
    """Return an arm as a live runner saved it, or the reason why there is nothing to continue."""
    saved = read_state(folder)
    if saved is None:
        return "the run has no saved state"
    cohorts = saved.run.cohorts
    control = cohorts[0].arms[0].plan.spec
    for cohort in cohorts:
        for arm in cohort.arms:
            if arm.plan.number != plan.number:
                continue
            if not isinstance(cohort.after, TopicPosition) or arm.model is None:
                return "the arm did not learn live examples"
            if arm.plan.spec.text != plan.spec.text:
                return "the spec changed since the run"
            if plan.spec.fields.fingerprint != control.fields.fingerprint:
                return "the arm has other fields than the control's examples"
            topic_id = saved.source.split(" ")[1]
            return SavedArm(arm.model, topic_id, cohort.after.offsets, arm.examples)
    return "the arm has ended, and its rows were not kept"
