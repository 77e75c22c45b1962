"""The stack comes up, comes up again with what it had, and leaves nothing behind."""

import functools
import os
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from headrace.deploy.errors import DeployError
from headrace.deploy.local.services import ports
from headrace.deploy.local.services.kafka import KafkaNode
from headrace.deploy.local.services.ports import HOST, KeptPorts, free_port, is_free, take_port
from headrace.deploy.local.services.services import LocalServices
from headrace.deploy.local.services.valkey import ValkeyNode
from tests.deploy.local.processes import descendants, parent, still_running
from tests.running_server import running_server

ONE_MACHINE = """
import signal, sys, time
from headrace.deploy.local.services.services import LocalServices
# who runs the tests in the background of a shell has it ignored, and hands that on
signal.signal(signal.SIGINT, signal.default_int_handler)
kafka = sys.argv[1] or None
with LocalServices(kafka=kafka) as machine:
    print(machine.directory, flush=True)
    time.sleep(1000)
"""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A directory to keep data in, not made yet."""
    return tmp_path / "data"


def test_a_used_directory_keeps_its_keys_after_a_kill_and_under_a_new_port(directory: Path) -> None:
    for number in (1, 3):
        node = ValkeyNode(directory)
        with running_server(node):
            assert node.call("INCR", "key") == str(number)
            node.kill()
            node.launch()
            node.wait_ready()
            assert node.call("INCR", "key") == str(number + 1)


def test_a_kafka_that_cannot_start_is_reported_with_the_end_of_its_log(tmp_path: Path) -> None:
    node = KafkaNode(tmp_path / "kafka", [tmp_path / "not-a.jar"])
    try:
        node.launch()

        with pytest.raises(DeployError, match=r"(?s)ended with status 1.*StorageTool"):
            node.wait_ready()
    finally:
        node.stop()


def test_a_state_directory_is_locked_for_one_headrace(directory: Path) -> None:
    with (
        LocalServices(kafka="kafka:9092", redis="redis://redis", directory=directory),
        pytest.raises(DeployError, match=rf"--state.*{directory}"),
        LocalServices(kafka="kafka:9092", redis="redis://redis", directory=directory),
    ):
        pass


def test_started_services_are_stopped_if_another_fails_to_start(tmp_path: Path) -> None:
    before = descendants(os.getpid())
    machine = LocalServices(jars_directory=tmp_path)

    with pytest.raises(DeployError, match="--kafka-jars"), machine:
        pass

    assert still_running([each for each in descendants(os.getpid()) if each not in before]) == []
    assert not machine.directory.exists()


@pytest.mark.parametrize(
    ("number", "kafka"),
    [(signal.SIGKILL, ""), (signal.SIGINT, "kafka:9092")],
    ids=["SIGKILL, all of it", "Ctrl-C"],
)
def test_a_signal_to_the_parent_leaves_no_process_and_no_directory(
    number: signal.Signals, kafka: str
) -> None:
    with parent(ONE_MACHINE, kafka) as (process, directory):
        everything = descendants(process.pid)
        assert len(everything) == (2 if kafka else 4)
        assert Path(directory).is_dir()

        os.killpg(process.pid, number)  # a terminal signals the group

        process.wait()
        assert still_running(everything) == []
    assert not Path(directory).exists()


_GIVING = """
import sys
from headrace.deploy.local.services import ports
ports.LOWEST_PORT, ports.PAST_HIGHEST_PORT = map(int, sys.argv[1:3])
print(*(ports.free_port() for _ in range(int(sys.argv[3]))), flush=True)
sys.stdin.read()
"""


def test_a_port_is_not_given_to_another_process_before_a_server_listens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    some, each = 40, 15  # by chance alone no two would be the same once in ten thousand runs
    first = max(free_port(), ports.LOWEST_PORT + some) - some
    monkeypatch.setattr(ports, "LOWEST_PORT", first)
    monkeypatch.setattr(ports, "PAST_HIGHEST_PORT", first + some)
    arguments = [sys.executable, "-c", _GIVING, str(first), str(first + some), str(each)]
    with subprocess.Popen(
        arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        theirs = set(map(int, other.stdout.readline().split()))
        ours = {free_port() for _ in range(each)}
        other.stdin.close()

    assert len(theirs) == each
    assert len(ours) == each
    assert not ours & theirs


@pytest.mark.parametrize("kind", ["directory", "link", "no place"])
def test_ports_are_found_without_the_file_of_locks(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / f"headrace-ports-{os.getuid()}"
    if kind == "directory":
        path.mkdir()
    elif kind == "link":
        path.symlink_to(tmp_path / "elsewhere")
    place = tmp_path / "gone" if kind == "no place" else tmp_path
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    monkeypatch.setattr(ports, "_locks", functools.cache(ports._locks.__wrapped__))

    assert is_free(free_port())
    assert ports._locks() is None


def test_a_chosen_port_is_reserved_only_once() -> None:
    port = free_port()
    assert not take_port(port)
    with socket.socket() as server:
        server.bind((HOST, 0))
        server.listen()
        assert not take_port(server.getsockname()[1])


_TAKING = """
import pathlib, sys
from headrace.deploy.local.services.ports import KeptPorts
ports = KeptPorts(pathlib.Path(sys.argv[1]))
print(ports.take("Kafka"), ports.take("Valkey"), *ports.moved, flush=True)
ports.save()
"""


def test_a_directory_keeps_its_ports_and_names_one_that_is_taken(tmp_path: Path) -> None:
    def taken() -> list[str]:
        command = [sys.executable, "-c", _TAKING, str(tmp_path)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split(
            maxsplit=2
        )

    kafka, valkey = taken()
    assert taken() == [kafka, valkey]
    with socket.create_server((HOST, int(kafka))):
        moved, kept, line = taken()
    assert kept == valkey
    assert moved != kafka
    assert line == f"port {kafka} of Kafka is taken: Kafka now listens on port {moved}\n"
    assert taken() == [moved, valkey], "the new port is kept too"


@pytest.mark.parametrize("text", ["", "[1]", '{"Kafka": "1"}', "\xff"])
def test_a_damaged_file_of_ports_gives_free_ports(text: str, tmp_path: Path) -> None:
    (tmp_path / "ports.json").write_text(text)
    assert is_free(KeptPorts(tmp_path).take("Kafka"))
