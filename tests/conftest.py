"""Starts the real servers that tests use, each at the first test that requests it.

One Kafka and one Valkey Cluster serve the whole run, or one worker of it. Tests are isolated by
fresh names (`fresh_name`), not by clean-up. The servers run under guards, so that none is left when
the run ends, even by SIGKILL.
"""

import gc
import itertools
import logging
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from headrace.deploy.local.services.child_process import ChildProcess
from headrace.deploy.local.services.kafka import KafkaNode
from headrace.deploy.local.services.valkey import ValkeyNode
from headrace.ingest.kafka.client_log import client_log
from tests.effort import LONG, QUICK, QUICK_EXAMPLES
from tests.running_server import jars, running_server, use_class_cache
from tests.valkey_cluster import ValkeyCluster

ROOT = Path(__file__).parents[1]
SERVERS = {
    *("kafka_node", "valkey_cluster", "valkey_node"),
    *("own_kafka", "own_cluster", "own_server", "tls_node"),
}
"""Fixtures that start a server. Tests of `own_…` break it, so their file has one of its own."""
THOROUGH = (
    "tests/bench",
    "tests/cluster",
    "tests/deploy",
    "tests/docs",
    "tests/faults",
    "tests/simulation",
    "tests/chaos/test_run",
    "tests/ingest/joiner/test_hostile_events",
    "tests/ingest/joiner/test_join_week",
    "tests/ingest/kafka/test_hanging_calls",
    "tests/ingest/kafka/test_kafka.py",
    "tests/ingest/kafka/test_watchdog",
    "tests/ingest/logs/test_event_tables",
    "tests/learner/batch/test_staged_file",
    "tests/learner/calibration/test_calibration",
    "tests/learner/experiments/test_executors",
    "tests/learner/loop/test_backpressure",
    "tests/learner/loop/test_bounded",
    "tests/learner/loop/test_guard",
    "tests/learner/loop/test_staleness",
    "tests/learner/models/deep/test_architectures",
    "tests/learner/models/deep/test_device_group",
    "tests/learner/models/deep/test_joint",
    "tests/learner/test_week",
    "tests/pserver/snapshots/test_snapshot_s3",
    "tests/serving/evaluation",
    "tests/serving/replicas/test_snapshots_served",
    "tests/serving/test_process",
    "tests/serving/workers",
)
"""Folders and files that start processes, or search for minutes."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that `make quick` leaves out: servers, processes, long searches.

    They run first: with short files at the end, no worker waits long for the others.
    """
    for item in items:
        if SERVERS & set(getattr(item, "fixturenames", ())):
            item.add_marker("servers")
        if item.path.relative_to(ROOT).as_posix().startswith(THOROUGH):
            item.add_marker("thorough")
    items.sort(key=lambda item: item.get_closest_marker("thorough") is None)


# 1.7 million objects of numba, torch and pytest last for a whole run. With Python's threshold of
# 700 new objects, traversing them again and again took a seventh of the processor time of
# `make quick`.
gc.set_threshold(20_000, *gc.get_threshold()[1:])


_STATE = tempfile.TemporaryDirectory(prefix="headrace-tests-")
# commands record their runs there, not in the home of the developer
os.environ["XDG_STATE_HOME"] = _STATE.name
use_class_cache()


def pytest_unconfigure() -> None:
    """Collect once, then exempt what is left: pytest collects five times before it exits."""
    _STATE.cleanup()
    gc.collect()
    gc.freeze()


# a loaded machine takes longer than the 200 ms an example and 1 s of drawing that Hypothesis allows
settings.register_profile(
    "long", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
# the same examples in each run: what fails, fails for everybody. `make test-long` searches on
settings.register_profile("all", settings.get_profile("long"), derandomize=True)
settings.register_profile("quick", settings.get_profile("all"), max_examples=QUICK_EXAMPLES)
settings.load_profile("quick" if QUICK else "long" if LONG else "all")


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave out what `make quick` would only import: the imports cost more than many tests."""
    within = collection_path.relative_to(ROOT).as_posix()
    return True if QUICK and within.startswith(THOROUGH) else None


@pytest.fixture(autouse=True)
def _levels_of_logs() -> Iterator[None]:
    """Put back the levels that a command sets for its process, if it ran in the one of a test."""
    logs = logging.getLogger(), client_log
    before = [each.level for each in logs]
    yield
    for each, level in zip(logs, before, strict=True):
        each.setLevel(level)


@pytest.fixture(scope="session", autouse=QUICK)
def _no_server() -> Iterator[None]:
    """Fail a test that starts a server in `make quick`, for want of the marker `servers`."""

    def refuse(self: ChildProcess, command: list[str], *_: object, **__: object) -> None:
        pytest.fail(f"{command[0]} started in make quick: mark this test `servers`", pytrace=False)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ChildProcess, "__init__", refuse)
        yield


@pytest.fixture(scope="session")
def stack_directory() -> Iterator[Path]:
    """The data directory of the servers of this run, removed at its end."""
    directory = Path(tempfile.mkdtemp(prefix="headrace-tests-"))
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="session")
def kafka_node(stack_directory: Path) -> Iterator[KafkaNode]:
    """A Kafka broker. A test that kills it must restart it."""
    node = KafkaNode(stack_directory / "kafka", jars(), remove=stack_directory)
    with running_server(node):
        yield node


@pytest.fixture(scope="session")
def kafka(kafka_node: KafkaNode) -> str:
    """The address (`host:port`) of a Kafka broker."""
    return kafka_node.bootstrap


@pytest.fixture(scope="session")
def valkey_cluster(stack_directory: Path) -> Iterator[ValkeyCluster]:
    """A Valkey Cluster of two primaries. A test that kills a node must restart it."""
    cluster = ValkeyCluster(stack_directory / "cluster", primaries=2, remove=stack_directory)
    with running_server(cluster):
        yield cluster


@pytest.fixture(scope="session")
def valkey(valkey_cluster: ValkeyCluster) -> str:
    """The URL of a Valkey Cluster of two primaries."""
    return valkey_cluster.url


@pytest.fixture(scope="session")
def valkey_node(stack_directory: Path) -> Iterator[str]:
    """The URL of a single Valkey server, not a cluster."""
    node = ValkeyNode(stack_directory / "standalone", remove=stack_directory)
    with running_server(node):
        yield node.url


@pytest.fixture(scope="session")
def fresh_name() -> Callable[[str], str]:
    """Makes unique names: `fresh_name("model")` is "model-3f9c-7"."""
    run = secrets.token_hex(2)
    count = itertools.count()
    return lambda stem: f"{stem}-{run}-{next(count)}"
