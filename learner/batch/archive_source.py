"""The examples that `headrace ingest sink --model` archived, as the source of a fit.

The live stream already joined and encoded these examples, so the label policy, the features and the
order are those of the stream, and no event is refused again. The archive names its offsets, and a
learner continues from the next one.
"""

from collections.abc import Iterator, Mapping

from headrace.ingest.archive.archived_examples import ExampleArchive
from headrace.ingest.kafka.topics import examples_topic
from headrace.learner.batch.sources import BatchSource, ExampleBlock, FilePosition
from headrace.learner.spec.model_spec import ModelSpec


class ArchiveSource(BatchSource):
    """An archive's examples of one model. Raises ArchiveError."""

    def __init__(self, url: str, spec: ModelSpec, examples_of: str = "") -> None:
        """`url`: the archiver's folder. `examples_of`: name of the model, if not the spec's own."""
        self._archive = ExampleArchive(url, examples_topic(examples_of or spec.name), spec.fields)
        self._rows: list[int] | None = None

    @property
    def identity(self) -> str:
        """Text that changes when the archive grows."""
        hours = (f"{each.hour}:{len(each.files)}:{each.size}" for each in self._archive.hours)
        return " ".join((self._archive.topic, *hours))

    @property
    def marks(self) -> Mapping[str, int]:
        """Topic id/partition -> the first offset that is not in the archive."""
        return self._archive.marks

    def count(self) -> None:
        """Count the rows of all hours, from the files' footers."""
        self._rows = [self._archive.rows_of(hour) for hour in self._archive.hours]

    def blocks(self, after: FilePosition) -> Iterator[ExampleBlock]:
        """Yield the blocks behind a position, hour by hour."""
        hours = self._archive.hours
        # without a count, an hour is read all at once
        sizes = self._rows or [each.size for each in hours]
        for number in range(after.file, len(hours)):
            done = sum(sizes[:number])
            for block, examples in enumerate(self._archive.blocks(hours[number]), 1):
                begun = done / max(sum(sizes), 1)
                done += len(examples) if self._rows else 0
                if number > after.file or block > after.block:
                    place = FilePosition(number, block)
                    read = done / max(sum(sizes), 1)
                    yield ExampleBlock(examples, place, read, begun=begun)
