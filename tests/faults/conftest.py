"""One cluster that is broken in every way, and a pipeline on it for each test."""

import dataclasses
import random
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from headrace.deploy.local.kernel_warmup import warm
from headrace.learner import process
from tests.faults.pipeline import Pipeline
from tests.faults.shards import IGNORING_XFSZ, wait_healthy
from tests.faults.traffic import spec_of
from tests.valkey_cluster import FAILING_OVER, ValkeyCluster


@pytest.fixture(scope="session")
def _cluster(stack_directory: Path) -> Iterator[ValkeyCluster]:
    cluster = ValkeyCluster(
        stack_directory / "replicated",
        primaries=3,
        # a backlog counts as memory used: it must be full before a test that limits that
        settings=dataclasses.replace(FAILING_OVER, repl_backlog_mb=1),
        replicas_each=1,
        remove=stack_directory,
    )
    for node in cluster.nodes:
        node.launcher = IGNORING_XFSZ
    try:
        cluster.launch()
        warm(spec_of("warm"))  # else the first test would count the compiler among its deadlines
        cluster.wait_ready()
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture
def cluster(_cluster: ValkeyCluster) -> ValkeyCluster:
    """A healthy cluster of three primaries and three replicas, in any roles."""
    wait_healthy(_cluster)
    return _cluster


@pytest.fixture
def pipeline(
    cluster: ValkeyCluster,
    kafka: str,
    fresh_name: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Pipeline]:
    """A model without a learner or a keeper."""
    # two learners of one model in one process share the registry of the process
    monkeypatch.setattr(process, "REGISTRY", CollectorRegistry(auto_describe=False))
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    with closing(Pipeline(cluster.url, kafka, fresh_name("faults"), seed)) as pipeline:
        yield pipeline
