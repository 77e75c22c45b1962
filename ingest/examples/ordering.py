"""Puts examples in another order, with the items of their bags and their strings."""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.ingest.examples.batch import Examples
from headrace.ingest.features.encoder import Encoded


def reordered(examples: Examples, order: npt.NDArray[np.int64]) -> Examples:
    """Return the examples at these places, in this order."""
    places = pa.array(order)
    return Examples(
        fingerprint=examples.fingerprint,
        watermark_ms=examples.watermark_ms,
        kinds=examples.kinds[order],
        labels=examples.labels[order],
        event_ms=examples.event_ms[order],
        shown_ms=examples.shown_ms[order],
        append_ms=examples.append_ms[order],
        impression_ids=examples.impression_ids.take(places),
        request_ids=examples.request_ids.take(places),
        features=_features(examples.features, len(examples), order),
        slices={name: values.take(places) for name, values in examples.slices.items()},
        weights=None if examples.weights is None else examples.weights[order],
        negative_rate=examples.negative_rate,
    )


def _features(features: Encoded, count: int, order: npt.NDArray[np.int64]) -> Encoded:
    ids, numbers, begins = features.ids[order], features.numbers[order], features.bag_offsets[:-1]
    if not begins.shape[0]:
        return Encoded(ids, features.bag_ids[:0], np.zeros(1, np.int32), numbers)
    lengths = np.diff(features.bag_offsets).reshape(count, -1)[order].reshape(-1)
    begins = begins.reshape(count, -1)[order].reshape(-1)
    offsets = np.zeros(lengths.shape[0] + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    items = np.repeat(begins - offsets[:-1], lengths) + np.arange(offsets[-1])
    return Encoded(ids, features.bag_ids[items], offsets, numbers)
