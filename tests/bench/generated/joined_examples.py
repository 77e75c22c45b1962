"""Orders the examples of a log in memory as a joiner writes them, under either label policy."""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.ingest.examples.batch import Examples, Kind, reordered
from headrace.ingest.features.encoder import Encoded
from headrace.learner.spec.model_spec import ModelSpec

Ints = npt.NDArray[np.int64]


class Clicks(NamedTuple):
    """The outcomes of n impressions: what a fault may change."""

    shown_ms: Ints  # (n,)
    click_ms: Ints  # (n,) -1 without a click


def unlabelled(
    spec: ModelSpec,
    features: Encoded,
    shown_ms: Ints,
    impression_ids: pa.StringArray,
    request_ids: pa.StringArray,
) -> Examples:
    """Return impressions, each an example without a label."""
    return Examples(
        fingerprint=spec.fields.fingerprint,
        watermark_ms=0,
        kinds=np.full(len(features), Kind.CLOSED, np.uint8),
        labels=np.zeros(len(features), np.uint8),
        event_ms=shown_ms,
        shown_ms=shown_ms,
        append_ms=shown_ms,
        impression_ids=impression_ids,
        request_ids=request_ids,
        features=features,
        slices={},
    )


def joined(spec: ModelSpec, shown: Examples, clicks: Clicks) -> tuple[Examples, Ints]:
    """Return the examples of impressions in the order in which a joiner writes them."""
    label, count = spec.fields.label, len(shown)
    late_ms = clicks.click_ms - clicks.shown_ms
    clicked = (clicks.click_ms >= 0) & (late_ms <= label.window_ms)
    if label.policy == "window":
        order = np.argsort(clicks.shown_ms, kind="stable")
        times = clicks.shown_ms[order]
        examples = replace(
            reordered(shown, order),
            labels=clicked[order].astype(np.uint8),
            event_ms=times,
            shown_ms=times,
            append_ms=times + label.window_ms,
        )
        return examples, order
    which = np.flatnonzero(clicked)
    both = np.concatenate((np.arange(count), which))
    times = np.concatenate((clicks.shown_ms, clicks.click_ms[which]))
    kinds = np.repeat(np.array([Kind.SHOWN, Kind.CLICKED], np.uint8), [count, which.size])
    order = np.lexsort((kinds, times))
    examples = replace(
        reordered(shown, both[order]),
        kinds=kinds[order],
        labels=(kinds[order] == Kind.CLICKED).astype(np.uint8),
        event_ms=times[order],
        shown_ms=clicks.shown_ms[both[order]],
        append_ms=times[order],
    )
    return examples, both[order]
