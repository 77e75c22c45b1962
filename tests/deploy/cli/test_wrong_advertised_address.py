"""Commands against a Kafka whose brokers advertise an address where no broker listens."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from headrace.deploy.local.services.kafka import HOST, KafkaNode
from headrace.deploy.local.services.ports import free_port
from tests.deploy.command import headrace
from tests.running_server import jars, running_server

MODEL = ("--model", str(Path(__file__).parents[3] / "examples" / "news_site" / "site.toml"))
COMMANDS = {
    "ingest topics": MODEL,  # the admin client
    "ingest join": MODEL,  # a reader, and transactions
    "ingest collect": ("--port", "0"),  # a writer
    "up": MODEL,
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
def ended(own_kafka: KafkaElsewhere) -> dict[str, CompletedProcess[str]]:
    """Each command after its end. They wait for Kafka side by side."""

    def run(command: str) -> CompletedProcess[str]:
        words = (*command.split(), *COMMANDS[command])
        return headrace(*words, HEADRACE_KAFKA=own_kafka.bootstrap)

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
