"""The parts of a local pipeline: their command lines."""

from __future__ import annotations

import pytest

from headrace.deploy.local.pipeline import LocalPipeline, PipelineSettings
from headrace.deploy.local.services.progress import SilentSetupProgress
from headrace.deploy.models.shipped import path_of


def hosts_of_metrics(settings: PipelineSettings) -> dict[str, str]:
    """The metrics host of each part that serves metrics on a port."""
    pipeline = LocalPipeline(settings, SilentSetupProgress())
    found = {}
    for part in pipeline._parts("kafka:9092", "redis://redis"):
        words = part.arguments
        if words[words.index("--metrics-port") + 1] != "0":
            found[part.name] = words[words.index("--metrics-host") + 1]
    return found


def test_every_part_of_a_local_pipeline_serves_its_metrics_on_loopback() -> None:
    expected = dict.fromkeys(("joiner", "learner", "keeper", "evaluation"), "127.0.0.1")
    assert hosts_of_metrics(PipelineSettings(path_of("demo"))) == expected


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1"])
def test_every_part_of_a_local_pipeline_takes_the_given_metrics_host(host: str) -> None:
    settings = PipelineSettings(path_of("demo"), metrics_host=host)
    assert set(hosts_of_metrics(settings).values()) == {host}
