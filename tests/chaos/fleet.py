"""The processes of headrace in a run, each with a supervisor of its own.

A supervisor restarts a process that died, as on any machine. A process that refuses to run stays
down until an operator acts, and this program is the operator. It can start a part again, start
another version of headrace under the same name, and change the number of learners, joiners and
keepers.
"""

import os
import re
import shutil
import signal
import struct
import urllib.request
from pathlib import Path

import headrace
from headrace.deploy.errors import PartFailed
from headrace.deploy.local.kernel_warmup import warm
from headrace.deploy.local.pipeline import PRODUCTION
from headrace.deploy.local.services.child_process import ChildProcess
from headrace.deploy.local.services.ports import free_port
from headrace.deploy.local.services.waiting import wait_until
from headrace.deploy.local.supervisor import HEADRACE, Restart, SupervisedPart, Supervisor
from headrace.ingest.kafka.settings import KafkaSettings
from headrace.ingest.kafka.topics import ensure_topics, topics_for
from headrace.learner.spec.model_spec import load_spec
from headrace.pserver.redis_backend.redis_store import RedisStore, StoreSettings, open_store
from headrace.pserver.redis_backend.server_requirements import LIBRARY_VERSION
from headrace.pserver.store import Shape
from headrace.serving.observers.prediction_log import ensure_predictions
from tests.chaos.servers import Servers

READY_S = 120.0
_COMMAND_S = 120.0
_STEPPED_CLOCK = Path(__file__).with_name("stepped_clock")


class Fleet:
    """The parts of headrace by name. `start_all` first, `stop` at the end."""

    def __init__(
        self, directory: Path, logs: Path, model: Path, servers: Servers, buckets: int
    ) -> None:
        self.directory, self.model, self.redis = directory, model, servers.redis
        self.spec = load_spec(model)
        self.kafka = KafkaSettings(servers.kafka)
        self._logs = logs
        self.port = free_port()
        self.version = LIBRARY_VERSION
        """Of the functions that the next started processes load."""
        self._buckets = buckets
        self._tree = Path(headrace.__file__).parents[1]
        self._clocks = directory / "clocks"
        self._clocks.mkdir()
        self._supervisors: dict[str, Supervisor] = {}
        self.deaths: list[Restart] = []
        """Every process that ended without being asked, in order."""

    @property
    def address(self) -> str:
        """URL of the server."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def ranking_url(self) -> str:
        """The route that ranks the candidates of a request."""
        return f"{self.address}/v1/models/{PRODUCTION}:rank"

    def open_store(self) -> RedisStore:
        """Connect to the model, whatever the version of the functions is."""
        return open_store(self.redis, self.spec.name, StoreSettings(read_only=True))

    def start_all(self, partitions: int, *, evaluated: bool) -> None:
        """Create topics and model, and start every part. Raises PartFailed."""
        ensure_topics(self.kafka, topics_for(self.spec.name, partitions))
        ensure_predictions(self.kafka, partitions)
        spec = self.spec
        store = open_store(self.redis, spec.name, StoreSettings())
        store.create(Shape(spec.name, self._buckets, spec.width, spec.fingerprint, spec.text))
        store.close()
        warm(spec)
        evaluation = ("evaluation",) if evaluated else ()
        for name in ("server", "keeper-1", "learner-1", "joiner-1", *evaluation):
            self.start(name)
        if not wait_until(self._server_ready, READY_S, lambda: not self.failures()):
            raise PartFailed(f"expected a ready server within {READY_S:g} s: {self.failures()}")

    def start(self, name: str) -> None:
        """Start a part, or start it again after `end` or after its failure."""
        self.end(name)
        supervisor = Supervisor(self._logs, remove=self.directory, on_restart=self.deaths.append)
        supervisor.start(self._part(name))
        self._supervisors[name] = supervisor

    def end(self, name: str) -> None:
        """Stop a part in good order."""
        if name in self._supervisors:
            self._supervisors.pop(name).stop()

    def names(self) -> list[str]:
        """The parts that should run."""
        return list(self._supervisors)

    def pids(self) -> dict[str, int]:
        """The process of every part that runs now."""
        kept = list(self._supervisors.items())
        return {name: each.pid(name) for name, each in kept if each.alive(name)}

    def restarts(self, name: str) -> int:
        """Return the number of restarts of this part since its last `start`."""
        return self._supervisors[name].restarts(name)

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal to a part."""
        os.kill(self._supervisors[name].pid(name), number)

    def step_clock(self, name: str, seconds: float) -> None:
        """Let the wall clock of a part differ from that of the machine by so much."""
        path = self._clocks / str(self._supervisors[name].pid(name))
        with path.open("r+b") as clock:
            clock.write(struct.pack("d", seconds))

    def failures(self) -> dict[str, str]:
        """The parts that stay down until an operator acts, with the reasons."""
        failed = {}
        for name, supervisor in list(self._supervisors.items()):
            try:
                supervisor.check()
            except PartFailed as error:
                failed[name] = str(error)
        return failed

    def run_command(self, *words: str) -> None:
        """Run a command of headrace to its end. Raises PartFailed."""
        log = self._logs / "commands.log"
        process = ChildProcess([*HEADRACE, *words], log, env=self._environment())
        status = process.wait(_COMMAND_S)
        if status != 0:
            process.stop()
            raise PartFailed(
                f"expected headrace {' '.join(words[:2])} to end within {_COMMAND_S:g} s with 0, "
                f"got {status}; the end of {log}:\n{process.log_tail()}"
            )

    def raise_version(self) -> None:
        """Make a copy of headrace whose functions have the next version, for what starts next."""
        self.version += 1
        tree = self.directory / f"version-{self.version}"
        shutil.copytree(Path(headrace.__file__).parent, tree / "headrace")
        backend = tree / "headrace" / "pserver" / "redis_backend"
        for name in ("server_requirements.py", "functions.lua"):
            path = backend / name
            text, found = re.subn(
                r"\bLIBRARY_VERSION = \d+", f"LIBRARY_VERSION = {self.version}", path.read_text()
            )
            assert found == 1, f"expected one LIBRARY_VERSION in {name}, got {found}"
            path.write_text(text)
        self._tree = tree

    def stop(self) -> None:
        """Stop every part, those that start last first."""
        for name in reversed(self.names()):
            self.end(name)

    def _part(self, name: str) -> SupervisedPart:
        spec = ("--model", str(self.model.resolve()))
        to_kafka = ("--kafka", self.kafka.bootstrap)
        kind = name.partition("-")[0]
        named = ("--instance", name)
        alias = f"{PRODUCTION}={self.spec.name}"
        listen = ("--port", str(self.port), "--metrics-port", "0")
        words = {
            "server": ("serving", "run", *listen, "--alias", alias, "--predictions-share", "1"),
            "keeper": ("pserver", "keep", "--name", name),
            "learner": ("learner", "run", *named),
            "joiner": ("ingest", "join", *named),
            "evaluation": ("evaluate", "run", *named),
        }[kind]
        return SupervisedPart(
            name, (*words, *spec, *to_kafka), self._environment(), gives_way=kind == "evaluation"
        )

    def _environment(self) -> dict[str, str]:
        return {
            **{k: v for k, v in os.environ.items() if not k.startswith("HEADRACE_")},
            "PYTHONPATH": f"{self._tree}:{_STEPPED_CLOCK}",
            "HEADRACE_CHAOS_CLOCKS": str(self._clocks),
            "HEADRACE_REDIS": self.redis,
            "PYTHONFAULTHANDLER": "1",
        }

    def _server_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.address}/health/ready", timeout=1.0) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False
