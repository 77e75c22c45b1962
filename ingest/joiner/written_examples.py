"""Leaves out of the joined examples those that a transaction committed in part has written.

Such a transaction is joined again from the checkpoint before it. The joiner is deterministic in
what it joins, but not in when: wall time may end a label window, or a wait, between two clicks. So
an example is identified by its impression id, and by whether it is the impression, its click, or
both. A click that was first found after the wait, and then within it, is written by itself. An id
that was shown twice, more than two label windows apart, has two examples: they are counted.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from headrace.ingest.examples.batch import Examples, Kind, reordered


class WrittenExamples:
    """The examples in the topic that were not yet joined again."""

    def __init__(self, batches: Iterable[Examples] = ()) -> None:
        self._shown: Counter[str] = Counter()
        self._clicked: Counter[str] = Counter()
        for batch in batches:
            for kind, name in zip(batch.kinds.tolist(), _names(batch), strict=True):
                self._shown[name] += kind != Kind.CLICKED
                self._clicked[name] += kind != Kind.SHOWN

    def __len__(self) -> int:
        return self._shown.total() + self._clicked.total()

    def without(self, examples: Examples) -> Examples:
        """Return joined examples without those in the topic, and forget these."""
        if not self:
            return examples
        kept, kinds = [], examples.kinds.copy()
        for place, (kind, name) in enumerate(zip(kinds.tolist(), _names(examples), strict=True)):
            shown = kind != Kind.CLICKED and not _taken(self._shown, name)
            clicked = kind != Kind.SHOWN and not _taken(self._clicked, name)
            if shown or clicked:
                kept.append(place)
                kinds[place] = kind if shown else Kind.CLICKED
        self._shown, self._clicked = +self._shown, +self._clicked
        return reordered(replace(examples, kinds=kinds), np.array(kept, np.int64))


def _taken(left: Counter[str], name: str) -> bool:
    found = left[name] > 0
    left[name] -= found
    return found


def _names(examples: Examples) -> list[str]:
    names: list[str] = examples.impression_ids.to_pylist()
    return names
