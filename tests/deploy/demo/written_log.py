"""Writes the synthetic stream of the demo as a log, faster than real time."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
import orjson

if TYPE_CHECKING:
    from headrace.deploy.demo.synthetic import SyntheticStream


Floats = npt.NDArray[np.float64]


class WrittenLog(NamedTuple):
    """Counts and truth of a written log."""

    impressions: int
    clicks: int
    truth: Floats  # (impressions,)


def write_log(
    directory: Path, stream: SyntheticStream, seconds: float, requests_s: int
) -> WrittenLog:
    """Write a log of the stream for `headrace run --data`, faster than real time.

    Advances the stream by `seconds` with `requests_s` requests each, and then to its last click.
    """
    directory.mkdir(parents=True, exist_ok=True)
    impressions, clicks, truth = 0, 0, []
    with (
        (directory / "impressions.ndjson").open("wb") as shown,
        (directory / "clicks.ndjson").open("wb") as clicked,
    ):
        end_ms = stream.now_ms + int(1000 * seconds)
        while stream.now_ms < end_ms or stream.pending:
            requests = requests_s if stream.now_ms < end_ms else 0
            happened = stream.step(stream.now_ms + 1000, requests)
            shown.writelines(orjson.dumps(event) + b"\n" for event in happened.impressions)
            clicked.writelines(orjson.dumps(event) + b"\n" for event in happened.clicks)
            impressions += len(happened.impressions)
            clicks += len(happened.clicks)
            truth.append(happened.truth)
    return WrittenLog(impressions, clicks, np.concatenate(truth) if truth else np.zeros(0))
