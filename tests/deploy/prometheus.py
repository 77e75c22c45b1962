"""A real Prometheus that scrapes the processes of a run."""

import json
import shutil
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from headrace.deploy.local.services.child_process import ChildProcess
from headrace.deploy.local.services.ports import free_port
from headrace.deploy.local.services.waiting import wait_until

PROMETHEUS = shutil.which("prometheus")
needs_prometheus = pytest.mark.skipif(PROMETHEUS is None, reason="Prometheus is not installed")


class Scraping:
    """One that is running."""

    def __init__(self, port: int) -> None:
        self._at = f"http://127.0.0.1:{port}"

    def ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self._at}/-/ready", timeout=2) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The series of an instant query; fails on an error."""
        asked = urllib.parse.urlencode({"query": expression, "time": f"{time.time():.3f}"})
        with urllib.request.urlopen(f"{self._at}/api/v1/query?{asked}", timeout=60) as answer:
            said = json.loads(answer.read())
        assert said["status"] == "success", said
        return list(said["data"]["result"])


@contextmanager
def scraping(directory: Path, rules: Path, ports: Mapping[str, int]) -> Iterator[Scraping]:
    """Start a Prometheus that scrapes `ports`, by job, every second, and goes by `rules`."""
    assert PROMETHEUS is not None
    settings = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(rules)],
        "scrape_configs": [
            {"job_name": f"headrace-{job}", "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]}
            for job, port in ports.items()
        ],
    }
    directory.mkdir()
    (directory / "prometheus.yml").write_text(yaml.safe_dump(settings))
    port = free_port()
    process = ChildProcess(
        [
            PROMETHEUS,
            f"--config.file={directory / 'prometheus.yml'}",
            f"--storage.tsdb.path={directory / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
        ],
        directory / "prometheus.log",
    )
    try:
        found = Scraping(port)
        assert wait_until(found.ready, 30, lambda: process.alive), process.log_tail()
        yield found
    finally:
        process.stop()
