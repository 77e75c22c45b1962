"""The folder of runs: one folder for each, with its record and its report.

    RUNS/20261123-091500-run-news/run.json      the record
                                  report.json   the report of `headrace run`

A record is written when a run begins and again when it ends, so a run that was killed is listed as
unfinished. Names begin with the time in UTC, so they sort by it. Two runs that begin in the same
second get different names: making a folder is atomic. Folders of `headrace experiment run --to` may
be in the same folder; they have a history of their own.
"""

import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from headrace.deploy.errors import DeployError
from headrace.deploy.reports.tracking.tracked_run import TrackedRun
from headrace.runtime.undecodable import UNDECODABLE

RECORD, REPORT = "run.json", "report.json"
_decode = msgspec.json.Decoder(TrackedRun).decode


def new_id(kind: str, name: str, begun_ms: int) -> str:
    """Return the id of a run that begins now: its time, kind and name."""
    moment = time.strftime("%Y%m%d-%H%M%S", time.gmtime(begun_ms / 1000))
    return f"{moment}-{kind}-{re.sub(r'[^A-Za-z0-9_.-]', '_', name)}"


class RunRegistry:
    """A folder of runs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def claim(self, kind: str, name: str, begun_ms: int) -> str:
        """Make the folder of a new run and return its id. Raises OSError."""
        stem = new_id(kind, name, begun_ms)
        number = 1
        while True:
            run_id = stem if number == 1 else f"{stem}-{number}"
            try:
                (self.folder / run_id).mkdir(parents=True)
            except FileExistsError:
                number += 1
            else:
                return run_id

    def write(self, run: TrackedRun) -> None:
        """Write the record of a run atomically. Raises OSError."""
        self._write(run.id, RECORD, msgspec.json.format(msgspec.json.encode(run)) + b"\n")

    def write_report(self, run_id: str, report: Mapping[str, Any]) -> str:
        """Write the report of a run; return the name of its file. Raises OSError."""
        self._write(run_id, REPORT, msgspec.json.format(msgspec.json.encode(report)) + b"\n")
        return REPORT

    def read(self, run_id: str) -> TrackedRun:
        """Return the record of a run. Raises DeployError."""
        path = self.folder / run_id / RECORD
        try:
            return _decode(path.read_bytes())
        except (OSError, *UNDECODABLE) as error:
            raise DeployError(f"{path}: expected the record of a run, found: {error}") from error

    def ids(self) -> list[str]:
        """Return the ids of all runs, oldest first."""
        return sorted(path.parent.name for path in self.folder.glob(f"*/{RECORD}"))

    def _write(self, run_id: str, name: str, content: bytes) -> None:
        path = self.folder / run_id / name
        unfinished = path.with_name(f"{name}.part")
        unfinished.write_bytes(content)
        unfinished.replace(path)
