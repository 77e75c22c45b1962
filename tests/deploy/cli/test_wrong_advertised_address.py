"""Commands against a Kafka whose brokers advertise an address where no broker listens."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from headrace.deploy.local.services.kafka import HOST, KafkaNode
from headrace.deploy.local.services.ports import free_port
from tests.deploy.command import headrace
from tests.running_server import jars, running_server

SPEC = Path(__file__).parents[3] / "examples" / "news_site" / "site.toml"
COMMANDS = {
    "ingest topics": ("--model", "SPEC"),
    "ingest join": ("--model", "SPEC"),
    "ingest collect": ("--port", "0"),
    "ingest sink": ("FOLDER",),
    "ingest dead-letters": (),
    "learner run": ("--model", "SPEC"),
    "topics grow": ("--model", "SPEC", "--partitions", "8"),
    "up": ("--model", "SPEC"),
}


class KafkaElsewhere(KafkaNode):
    """A broker that advertises a port where nothing listens."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.advertised = f"{HOST}:{free_port()}"

    def _properties(self) -> dict[str, object]:
        listener = f"PLAINTEXT://{self.advertised}"
        return {**super()._properties(), "advertised.listeners": listener}


@pytest.fixture(scope="module")
def own_kafka(stack_directory: Path) -> Iterator[KafkaElsewhere]:
    """Such a broker."""
    directory = stack_directory / "kafka-elsewhere"
    with running_server(KafkaElsewhere(directory, jars(), remove=stack_directory)) as node:
        yield node


@pytest.fixture(scope="module")
def ended(
    own_kafka: KafkaElsewhere,
    valkey: str,
    fresh_name: Callable[[str], str],
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, CompletedProcess[str]]:
    """Each command after its end. They wait for Kafka side by side."""

    def run(command: str) -> CompletedProcess[str]:
        folder = tmp_path_factory.mktemp("site")
        spec = folder / "site.toml"
        name = f'name = "{fresh_name("site")}"'
        spec.write_text(SPEC.read_text().replace('name = "site"', name, 1))
        if command == "learner run":
            made = headrace("pserver", "init", "--model", str(spec), HEADRACE_REDIS=valkey)
            assert made.returncode == 0, made.stderr
        places = {"SPEC": str(spec), "FOLDER": str(folder)}
        return headrace(
            *(*command.split(), *(places.get(each, each) for each in COMMANDS[command])),
            HEADRACE_KAFKA=own_kafka.bootstrap,
            HEADRACE_REDIS=valkey,
        )

    with ThreadPoolExecutor(4) as pool:
        return dict(zip(COMMANDS, pool.map(run, COMMANDS), strict=True))


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_names_the_advertised_address_and_its_setting(
    own_kafka: KafkaElsewhere, ended: dict[str, CompletedProcess[str]], command: str
) -> None:
    shown = " ".join(ended[command].stderr.split())
    assert ended[command].returncode == 75, shown
    assert "no Kafka broker answers" not in shown
    assert "advertised.listeners" in shown
    assert own_kafka.advertised in shown and own_kafka.bootstrap in shown
