"""docs/guides/operating.md is true: its configuration; errors.md: its tables."""

import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from headrace.deploy.local.services.child_process import ChildProcess
from headrace.deploy.local.services.ports import free_port
from headrace.deploy.local.services.valkey import call, server_binary
from headrace.deploy.local.services.waiting import wait_until
from headrace.deploy.operations import cluster_checks, server_checks
from headrace.deploy.operations.check_result import Severity
from headrace.ingest.errors import StreamError
from headrace.learner.errors import LearnerError
from headrace.pserver.errors import StoreError
from headrace.pserver.inspection.model_survey import survey
from headrace.pserver.redis_backend.redis_store import open_store
from tests.docs.pages import DOCS, blocks

PAGE = (DOCS / "guides/operating.md").read_text()
ERRORS = (DOCS / "guides/errors.md").read_text()


@pytest.fixture
def configured(tmp_path: Path) -> Iterator[int]:
    """The port of a server with the page's configuration, alone in a cluster of one."""
    [text] = blocks(PAGE, "conf")
    lines = [re.sub(r"\s+#.*", "", line) for line in text.splitlines()]
    (tmp_path / "page.conf").write_text("\n".join(lines) + "\n")
    port = free_port()
    own = ("--port", str(port), "--cluster-port", str(free_port()), "--bind", "127.0.0.1")
    server = ChildProcess(
        [str(server_binary()), str(tmp_path / "page.conf"), *own, "--dir", str(tmp_path)],
        tmp_path / "server.log",
    )

    def serves() -> bool:
        try:
            return "cluster_state:ok" in call("127.0.0.1", port, "CLUSTER", "INFO")
        except ConnectionError:
            return False

    def answers() -> bool:
        try:
            return call("127.0.0.1", port, "PING") == "PONG"
        except ConnectionError:
            return False

    try:
        assert wait_until(answers, 30, lambda: server.alive), server.log_tail()
        call("127.0.0.1", port, "CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        assert wait_until(serves, 30, lambda: server.alive), server.log_tail()
        yield port
    finally:
        server.stop()


def test_a_server_with_this_configuration_passes_the_doctor(configured: int) -> None:
    with closing(open_store(f"redis+cluster://127.0.0.1:{configured}", "m")) as store:
        nodes = survey(store, "m").nodes
    found = [
        *server_checks.check_functions(nodes),
        *server_checks.check_memory(nodes),
        *server_checks.check_persistence(nodes),
        *server_checks.check_replication(nodes),
        *cluster_checks.check_cluster(nodes),
    ]
    assert [(each.severity, each.expected) for each in found] == [
        (Severity.NOTE, "a replica that takes over after a failure")
    ]


def test_every_error_that_stops_or_delays_a_process_is_explained() -> None:
    def below(kind: type[Exception]) -> Iterator[str]:
        for each in kind.__subclasses__():
            yield each.__name__
            yield from below(each)

    explained = set(re.findall(r"^\| `([A-Z]\w+)` \|", ERRORS, re.MULTILINE))
    ours = {
        name
        for base, module in (
            (StoreError, "headrace.pserver.errors"),
            (LearnerError, "headrace.learner.errors"),
            (StreamError, "headrace.ingest.errors"),
        )
        for name in below(base)
        if name in vars(__import__(module, fromlist=["errors"]))
    }
    assert explained == ours
