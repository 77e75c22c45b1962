"""A fleet starts, rolls, rotates and stops as docs/guides/processes.md says, with real servers."""

import json
import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pyarrow.dataset
import pytest

from headrace.deploy.local.services.ports import free_port
from tests.deploy.command import GENEROUS_S, Running, headrace, running
from tests.docs.pages import DOCS, blocks
from tests.docs.walk import EXAMPLES
from tests.valkey_cluster import ValkeyCluster

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

PAGE = (DOCS / "guides/processes.md").read_text()
ROLES = {"joiner", "keeper", "learner", "server", "evaluation", "sink", "collector"}
TOKENS = "the-old-long-secret", "the-new-long-secret"
PASSWORDS = "the-old-password", "the-new-password"


class Fleet:
    """The processes of the page, in its order."""

    def __init__(self, folder: Path, variables: dict[str, Any], valkey: ValkeyCluster) -> None:
        self.variables, self.tokens, self.archive = variables, folder / "tokens", folder / "sink"
        self.password, self.sent, self._valkey = folder / "password", 0, valkey
        self._running = ExitStack()
        self.processes: dict[str, Running] = {}
        self._words: dict[str, list[str]] = {}
        self._places = {"FILE": str(self.tokens)}
        self._folders = {"ingest sink": self.archive, "pserver keep": folder / "snapshots"}

    def __enter__(self) -> "Fleet":
        return self

    def __exit__(self, *_: object) -> None:
        self._running.close()

    def run(self, line: str) -> str:
        """Run a command of the page to its end; return its output."""
        ended = headrace(*shlex.split(line, comments=True)[1:], **self.variables)
        assert ended.returncode == 0, f"{line}\n{ended.stdout}{ended.stderr}"
        return ended.stdout

    def start(self, line: str) -> None:
        """Start a process of the page on free ports."""
        words = shlex.split(line, comments=True)[1:]
        name = " ".join(words[:2])
        places = {**self._places, "DIR": str(self._folders.get(name))}
        words = [places.get(each, each) for each in words]
        words[words.index("--metrics-port") + 1] = str(free_port())
        if "--host" in words:
            words += ["--port", str(free_port())]
        self._words[name] = words
        self._begin(name)

    def roll(self, name: str) -> None:
        """Stop a process and start it again."""
        self.stop(name)
        self._begin(name)

    def stop(self, name: str) -> None:
        """Stop a process; it ends by itself, with status 0."""
        process = self.processes.pop(name).process
        process.terminate()
        assert process.wait(GENEROUS_S) == 0, name

    def send(self, token: str) -> int:
        """Send an impression and its click to the collector; return the status."""
        now_ms = time.time_ns() // 1_000_000
        event = {"impression_id": f"i{self.sent}", "timestamp_ms": now_ms, "user": "u"}
        status = self._post("ingest collect", "impressions", event, token)
        if status == 200:
            self.sent += 1
            del event["user"]
            assert self._post("ingest collect", "clicks", event, token) == 200
        return status

    def ask(self, token: str) -> int:
        """Ask for a prediction; return the status."""
        body = {"context": {"user": "u"}, "candidates": [{}]}
        return self._post("serving run", "models/site:predict", body, token)

    def allow(self, change: str) -> None:
        """Change the passwords of the user in the store."""
        for node in self._valkey.nodes:
            node.call("ACL", "SETUSER", self.variables["HEADRACE_REDIS_USER"], change)

    def _post(self, name: str, path: str, body: object, token: str) -> int:
        url = f"http://127.0.0.1:{self._port(name)}/v1/{path}"
        bearer = {"Authorization": f"Bearer {token}"}
        return httpx.post(url, json=body, headers=bearer, timeout=60).status_code

    def _port(self, name: str, flag: str = "--port") -> int:
        """Return a port of a process."""
        words = self._words[name]
        return int(words[words.index(flag) + 1])

    def _begin(self, name: str) -> None:
        process = self._running.enter_context(running(*self._words[name], **self.variables))
        self.processes[name] = process
        url = f"http://127.0.0.1:{self._port(name, '--metrics-port')}/health/ready"

        def why_not_ready() -> str:
            assert process.process.poll() is None, process.output
            try:
                answer = httpx.get(url, timeout=60)
            except httpx.TransportError as error:
                return f"{name}: {error}\n{process.output}"
            return "" if answer.status_code == 200 else f"{name}: {answer.text}\n{process.output}"

        eventually(why_not_ready)


def eventually(why_not: Callable[[], object]) -> None:
    """Wait until a reason is gone."""
    deadline_s = time.monotonic() + GENEROUS_S
    while reason := why_not():
        assert time.monotonic() < deadline_s, reason
        time.sleep(0.1)


@pytest.fixture
def fleet(
    kafka: str, valkey_cluster: ValkeyCluster, fresh_name: Callable[[str], str], tmp_path: Path
) -> Iterator[Fleet]:
    user = fresh_name("fleet")
    for node in valkey_cluster.nodes:
        node.call("ACL", "SETUSER", user, "on", f">{PASSWORDS[0]}", "~*", "&*", "+@all")
    variables: dict[str, Any] = {
        "HEADRACE_MODEL": str(EXAMPLES / "news_site" / "site.toml"),
        "HEADRACE_KAFKA": kafka,
        "HEADRACE_REDIS": valkey_cluster.url,
        "HEADRACE_TOPICS_PREFIX": f"{fresh_name('fleet')}.",
        "HEADRACE_REDIS_USER": user,
        "HEADRACE_REDIS_PASSWORD_FILE": str(tmp_path / "password"),
    }
    with Fleet(tmp_path, variables, valkey_cluster) as made:
        made.tokens.write_text(f"{TOKENS[0]}\n")
        made.password.write_text(PASSWORDS[0])
        yield made


def test_a_fleet_starts_rolls_rotates_and_stops_in_the_order_of_the_page(fleet: Fleet) -> None:
    for line in blocks(PAGE, "sh")[0].splitlines():
        if "--metrics-port" in line:
            fleet.start(line)
        elif line and "doctor" not in line:
            fleet.run(line)
    reported: set[str] = set()

    def silent() -> set[str]:
        shown = json.loads(fleet.run("headrace status --json"))
        reported.update(each["process"] for each in shown["processes"])
        return ROLES - reported

    eventually(silent)

    old, new = TOKENS
    assert [fleet.send(old), fleet.send(new), fleet.ask(old), fleet.ask(new)] == [200, 401] * 2
    fleet.tokens.write_text(f"{new}\n\n")
    eventually(lambda: [each for each in (fleet.ask(new), fleet.send(new)) if each != 200])
    assert [fleet.send(old), fleet.ask(old)] == [401, 401]

    fleet.allow(f">{PASSWORDS[1]}")
    fleet.password.write_text(PASSWORDS[1])
    for name in list(fleet.processes):
        fleet.roll(name)
    fleet.allow(f"<{PASSWORDS[0]}")
    assert [fleet.send(new), fleet.ask(new)] == [200, 200]

    def unlearned() -> list[object]:
        found = json.loads(fleet.run("headrace pserver inspect --json"))
        return [each for each in found["buckets"] if each["lag"]] if found["rows"] else [found]

    eventually(unlearned)
    doctor = headrace("pserver", "doctor", **fleet.variables)
    assert doctor.returncode < 2, doctor.stdout
    fleet.stop("ingest collect")
    for name in sorted(fleet.processes, key="ingest sink".__eq__):  # it may still read: the last
        fleet.stop(name)
    for topic in ("impressions", "clicks"):
        rows = pyarrow.dataset.dataset(fleet.archive / topic).to_table()
        ids = sorted(rows["impression_id"].to_pylist())
        assert ids == [f"i{number}" for number in range(fleet.sent)], topic
