"""Accuracy by the number of partitions through real processes, for `tests.bench.partitions`.

Each run is `headrace run --speed max`, with a Kafka and a Valkey of its own: replay, joiner and
learner all run at once.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.deploy.command import headrace

if TYPE_CHECKING:
    from rich.console import Console

_RUN_S = 900.0


def measure_processes(
    model: Path, data: Path, partitions: Sequence[int], tell: Console
) -> list[dict[str, Any]]:
    """Return the accuracy, and the events learned in a second, by number of partitions."""
    found = []
    for count in partitions:
        with tempfile.TemporaryDirectory(prefix="headrace-partitions-") as directory:
            report = Path(directory) / "report.json"
            ended = headrace(
                *("run", "--model", str(model), "--data", str(data), "--speed", "max"),
                *("--partitions", str(count), "--report", str(report)),
                *("--runs", "off", "--no-check", "--no-evaluate"),
                timeout_s=_RUN_S,
            )
            if ended.returncode:
                raise RuntimeError(f"{count} partitions: expected a report, got {ended.stderr}")
            made = json.loads(report.read_bytes())
        accuracy = made["progressive"]
        figures = {name: round(accuracy[name], 5) for name in ("auc", "request_auc", "log_loss")}
        events_s = round((made["impressions"] + made["clicks"]) / made["seconds"])
        run = {"partitions": count, "learners": 1, "push_every": "", "events_s": events_s}
        found.append(run | figures)
        tell.print(f"{model.stem}: {found[-1]}")
    return found
