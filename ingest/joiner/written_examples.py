"""Leaves out of the joined examples those that a transaction committed in part has written.

Such a transaction is joined again from the checkpoint before it. The joiner is deterministic in
what it joins, but not in when: wall time may end a label window between two clicks. So an example
is identified by its kind and its impression id, not by its place. An id that was shown twice, more
than two label windows apart, has two examples: they are counted.
"""

from collections import Counter
from collections.abc import Iterable, Iterator

import numpy as np

from headrace.ingest.examples.batch import Examples, reordered


class WrittenExamples:
    """The examples in the topic that were not yet joined again."""

    def __init__(self, batches: Iterable[Examples] = ()) -> None:
        self._left: Counter[tuple[int, str]] = Counter()
        for batch in batches:
            self._left.update(_identities(batch))

    def __len__(self) -> int:
        return self._left.total()

    def without(self, examples: Examples) -> Examples:
        """Return joined examples without those in the topic, and forget these."""
        if not self._left:
            return examples
        kept = []
        for place, identity in enumerate(_identities(examples)):
            if self._left[identity]:
                self._left[identity] -= 1
            else:
                kept.append(place)
        self._left = +self._left
        return reordered(examples, np.array(kept, np.int64))


def _identities(examples: Examples) -> Iterator[tuple[int, str]]:
    return zip(examples.kinds.tolist(), examples.impression_ids.to_pylist(), strict=True)
