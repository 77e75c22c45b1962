"""The errors that stop a learner, besides those of the parameter server and of Kafka."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.ingest.kafka.protocols import Source


_MOST_SHOWN = 4
"""Places named in one message."""


class LearnerError(Exception):
    """A learner cannot continue; the message says what an operator can do."""


class MarkOutsideTopic(LearnerError):
    """The store's marks are outside the topic: examples are gone, or never existed."""

    def __init__(self, source: Source, name: str, mark: int, first: int, end: int) -> None:
        lacking = (
            f"examples {mark} to {first} were deleted before they were learned"
            if mark < first
            else "the topic was truncated, or the store belongs to another one"
        )
        way_on = (
            " To skip these examples, start the learner once with `--accept-gap`."
            if mark < first
            else ""
        )
        super().__init__(
            f"{source.topic}/{source.partition} ({name}): the parameter server has learned up to "
            f"offset {mark}, the topic holds {first} to {end}: {lacking}. Restore a snapshot that "
            f"fits the topic, or begin a new model.{way_on}"
        )


class TopicMadeAgain(LearnerError):
    """The topic was recreated: only its operator can say how it relates to the old one."""

    def __init__(
        self, topic: str, before: str, now: str, learned: Mapping[str, tuple[int, int]]
    ) -> None:
        """`learned`: source in the marks -> its lowest and highest mark over the buckets."""
        marks = "; ".join(
            f"{name} up to offset {high}"
            + (f", some buckets only up to {low}" if low < high else "")
            for name, (low, high) in sorted(learned.items())
        )
        super().__init__(
            f"topic {topic}: expected the topic with identity {before}, got {now}: it is another "
            "topic, or was deleted and recreated. The model has learned "
            f"{marks or 'what was pushed before'}. If the model is a promoted arm with its rows, "
            "add --examples-of CONTROL, as `headrace experiment promote` printed it. Otherwise, "
            "the later examples of the old topic are lost. If the new topic continues the old one, "
            f"start the learner once with `--accept-topic {now}`. If it repeats examples, they "
            "would count twice: run `headrace pserver drop`, then `headrace pserver init`."
        )


class BucketsBehind(LearnerError):
    """Restored buckets lack examples of a topic that was recreated since."""

    def __init__(self, topic: str, now: str, lacking: Sequence[tuple[int, str, int, int]]) -> None:
        """`lacking`: bucket, source in the marks, its mark there, the greatest mark anywhere."""
        shown = "; ".join(
            f"bucket {bucket} has learned {source} up to offset {mark}, others up to {most}"
            for bucket, source, mark, most in lacking[:_MOST_SHOWN]
        )
        more = f"; and {len(lacking) - _MOST_SHOWN} more" if len(lacking) > _MOST_SHOWN else ""
        super().__init__(
            f"topic {topic}: expected buckets that have learned all of the topic before {now}, got "
            f"{shown}{more}. These buckets come from a snapshot older than the accepted topic, and "
            "the examples in between are gone. Restore a snapshot that has learned from the "
            "present topic. To skip these examples instead, start the learner once with "
            f"`--accept-topic {now}`."
        )


class LogTruncated(LearnerError):
    """Kafka lost examples that were learned, and wrote others at their offsets."""

    def __init__(self, cut: Mapping[Source, int], topic_id: str) -> None:
        """`cut`: by source, the offset up to which the parameter server has learned."""
        shown = "; ".join(
            f"{source.topic}/{source.partition} before offset {mark}"
            for source, mark in cut.items()
        )
        super().__init__(
            f"expected the examples learned so far, got partitions that lost them: {shown}. Kafka "
            "lost acknowledged examples and wrote others at their offsets (an unclean election, or "
            "a power loss with one replica). Restore a snapshot from before that, or begin a new "
            "model. To skip the examples written at these offsets, start the learner once with "
            f"`--accept-topic {topic_id}`."
        )


class WrongExamples(LearnerError):
    """The topic of examples holds other fields, or no examples."""

    def __init__(self, topic: str, why: Exception) -> None:
        super().__init__(
            f"topic {topic}: {why}. A model learns its own examples (topic examples.NAME), or with "
            "--examples-of those of a model with the same [fields], [label] and [examples]."
        )


class ExamplesExpired(LearnerError):
    """Kafka deleted examples that an experiment still needs."""


class UnfitModule(LearnerError):
    """The torch module that a spec names cannot be trained and served."""

    def __init__(self, name: str, expected: str, found: str) -> None:
        super().__init__(f'[model] module = "{name}": expected {expected}, got {found}')


class MissingTorch(LearnerError):
    """A deep model needs torch, which is not installed."""

    def __init__(self, architecture: str) -> None:
        super().__init__(
            f'[model] architecture = "{architecture}": expected torch, which is not '
            "installed: pip install 'headrace[deep]'"
        )


class MissingDevice(LearnerError):
    """The device that a spec names is not there, or torch cannot use it."""

    def __init__(
        self, devices: int, found: int, torch_version: str, cuda_version: str | None
    ) -> None:
        built = f"built for CUDA {cuda_version}" if cuda_version else "built without CUDA"
        versions = f"(torch {torch_version}, {built})"
        if found:
            super().__init__(
                f"[model] devices = {devices}: expected as many CUDA devices, got {found} "
                f"{versions}. Set devices to at most {found}"
            )
            return
        super().__init__(
            f'[model] device = "cuda": expected a CUDA device, got none {versions}. With '
            '`device = "auto"`, the learner uses the CPU.'
        )


class DevicesLost(LearnerError):
    """The processes of `[model] devices` could not start, or one ended."""

    def __init__(self, why: str) -> None:
        super().__init__(
            "[model] devices: expected a process for each device until the learner ends, got: "
            f"{why}. Start the learner again: it learns the examples that it had not pushed"
        )


class MissingOnnx(LearnerError):
    """An export needs the package onnx, which is not installed."""

    def __init__(self) -> None:
        super().__init__(
            "export: expected the package onnx, which is not installed: "
            "pip install 'headrace[export]'"
        )


class NotExportable(LearnerError):
    """A model has a part that an exported file cannot hold."""

    def __init__(self, model: str, expected: str, found: str) -> None:
        super().__init__(
            f'export of model "{model}": expected {expected}, got {found}. For devices, learn a '
            "model of another name without it (headrace fit)"
        )


class GroupBroken(LearnerError):
    """A group of learners that step together lost a member, or its common state."""

    def __init__(self, rank: int, size: int, why: str) -> None:
        super().__init__(
            f"learner {rank} of a synchronous group of {size}: expected every member to answer, "
            f"and every push to be applied, got: {why}. Restart all learners of the group, as "
            "torchrun does. They read the examples that they had not pushed from Kafka again"
        )


class NoGroup(LearnerError):
    """A spec asks for learners that step together, and this one got no rank."""


class NoUncertainty(ValueError):
    """Uncertainty was asked of a model whose optimizer keeps no count of what it saw."""

    def __init__(self, model: str, optimizer: str) -> None:
        super().__init__(
            f'model "{model}": expected the optimizer "ftrl", "adagrad" or "coin", got '
            f'"{optimizer}", whose rows lack the sums that an uncertainty needs'
        )


class NotPulled(LearnerError):
    """Rows that a batch needs could not be pulled: the batch is dropped and read again."""


class RecoveryRefused(LearnerError):
    """A restore or rebuild cannot produce the requested model."""
