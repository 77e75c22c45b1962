"""`headrace up` on a killed Valkey and a killed Kafka: they return with their data and ports."""

import json
import re
import signal
import time
import urllib.error
import urllib.request
from pathlib import Path

import psutil
import pytest

from headrace.deploy.local.services.waiting import wait_until
from headrace.deploy.models.shipped import path_of
from tests.deploy.command import GENEROUS_S, Running, running

pytestmark = pytest.mark.timeout(900)

_EVENT = {"user_id": "u", "item_id": "i", "category": "c", "position": "1", "device": "d"}
_CANDIDATES = b'{"context": {"user_id": "u"}, "candidates": [{"item_id": "i"}]}'


class Client:
    """Sends events to the collector and asks the server, at the addresses that `up` has printed."""

    def __init__(self, output: str) -> None:
        found = re.search(r"curl -s (http://\S+)/v1/impressions", output)
        served = re.search(r"page: (http://\S+)/\n", output)
        assert found is not None
        assert served is not None
        self.collector, self.server = found.group(1), served.group(1)

    def learned_an_event(self) -> bool:
        """Whether an event that is sent now gives the model a newer version."""
        before = self._version()
        event = {"impression_id": f"{time.time_ns()}", "timestamp_ms": int(time.time() * 1000)}
        body = json.dumps(event | _EVENT).encode()
        if not wait_until(lambda: self._accepted(body), GENEROUS_S):
            return False
        return wait_until(lambda: self._version() > before, GENEROUS_S)

    def _accepted(self, body: bytes) -> bool:
        """Whether the collector took this event. Without Kafka it answers 503: try again."""
        try:
            return b'"accepted":1' in self._post(f"{self.collector}/v1/impressions", body)
        except urllib.error.HTTPError as error:
            if error.code != 503:
                raise
            return False

    def _version(self) -> int:
        return int(
            json.loads(self._post(f"{self.server}/v1/models/demo:predict", _CANDIDATES))["version"]
        )

    def _post(self, url: str, body: bytes) -> bytes:
        request = urllib.request.Request(url, body, {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=120) as answer:
            return bytes(answer.read())


def started_server(up: Running, name: str) -> psutil.Process:
    """The only process of this name that `up` has started."""
    every = psutil.Process(up.process.pid).children(recursive=True)
    [found] = [each for each in every if each.name() == name]
    return found


def test_killed_servers_return_with_their_data_and_learning_goes_on_at_the_same_addresses(
    tmp_path: Path,
) -> None:
    state = tmp_path / "state"
    arguments = ["up", "--model", str(path_of("demo")), "--no-evaluate", "--state", str(state)]
    with running(*arguments) as up:
        up.wait_for("serving until Ctrl-C")
        client = Client(up.output)
        assert client.learned_an_event()
        server_log = (state / "logs" / "server.log").read_text()
        assert f"server started; metrics and health on {client.server}\n" in server_log
        with urllib.request.urlopen(f"{client.server}/metrics", timeout=120) as metrics:
            assert b"headrace_" in metrics.read()
        for name, program, log in (
            ("valkey-server", "valkey-server", state / "valkey" / "valkey.log"),
            ("java", "Kafka", state / "kafka" / "kafka.log"),
        ):
            killed = started_server(up, name)
            killed.kill()
            up.wait_for(
                rf"{program} \(process {killed.pid}\) died \(SIGKILL\) and was restarted; "
                rf"its log {re.escape(str(log))}"
            )
            assert client.learned_an_event(), up.output
        status, left = up.stop(signal.SIGINT)
        assert (status, left) == (0, []), up.output
        assert "restarted" not in up.output.partition("stopping every part")[2]
