"""Small batches of examples and scores, written down by hand."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from headrace.ingest.examples.batch import Examples, Kind
from headrace.ingest.features.encoder import Encoded
from headrace.learner.loop.scores import Scores


def examples(
    rows: Sequence[tuple[Kind, str, str | None]], labels: Sequence[int] | None = None
) -> Examples:
    """A batch of (kind, impression, request); a click's label is 1, another's 0 if not given."""
    count = len(rows)
    times = np.full(count, 1_700_000_000_000, np.int64)
    return Examples(
        fingerprint="handmade",
        watermark_ms=0,
        kinds=np.array([kind for kind, _, _ in rows], np.uint8),
        labels=np.array(labels or [kind == Kind.CLICKED for kind, _, _ in rows], np.uint8),
        event_ms=times,
        shown_ms=times,
        append_ms=times,
        impression_ids=pa.array([impression for _, impression, _ in rows], pa.string()),
        request_ids=pa.array([request for _, _, request in rows], pa.string()),
        features=Encoded(
            np.zeros((count, 1), np.uint64),
            np.zeros(0, np.uint64),
            np.zeros(1, np.int32),
            np.zeros((count, 0), np.float32),
        ),
        slices={},
    )


def scores(given: Sequence[tuple[str, float]]) -> Scores:
    """A batch of (impression, score)."""
    return Scores(
        pa.array([impression for impression, _ in given], pa.string()),
        pa.array([None for _ in given], pa.string()),
        np.zeros(len(given), np.int64),
        np.array([score for _, score in given], np.float64),
    )
