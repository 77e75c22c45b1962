"""The whole road on this machine: Kafka, Redis or Valkey, and every part, each a process.

Started in the order in which events travel it backwards, so that nothing is sent to what is not
there: stores, topics, the model, then server, keeper, learner and joiner, and live evaluation
beside them. Each part is `headrace` again, with flags for what this process knows, under a
supervisor that starts it again when it dies.
Whoever uses the road sends events into Kafka, and looks at it from outside like anybody else.
"""

from __future__ import annotations

import contextlib
import time
import urllib.request
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from headrace.deploy.connections import client_variable, kafka_settings, open_store
from headrace.deploy.errors import PartFailed
from headrace.deploy.local.drain import Drain
from headrace.deploy.local.kernel_warmup import warm
from headrace.deploy.local.services import LocalServices, free_port, take_port
from headrace.deploy.local.supervisor import SupervisedPart, Supervisor
from headrace.ingest.kafka import ensure_topics, topics_for
from headrace.learner.spec import load_spec
from headrace.pserver import Shape
from headrace.serving.observers import ensure_predictions

if TYPE_CHECKING:
    import threading
    from pathlib import Path
    from types import TracebackType

    from headrace.deploy.local.services import SetupProgress
    from headrace.deploy.local.supervisor import Restart
    from headrace.pserver import Store

_LOOK_S = 0.05
_PATIENCE_S = 15.0
"""With live evaluation, from the start of the parts: it takes 5 s where there is a core for it."""
_SAID = {"evaluation": b"headrace_evaluation_open_panes"}
"""In the metrics of who works: what Faust does until it has its partition would be felt by all."""
PRODUCTION = "production"
"""Alias of the model, that answers are told apart by."""


@dataclass(frozen=True, slots=True)
class PipelineSettings:
    """What to run, and what there is already."""

    model: Path
    """The model spec."""
    kafka: str | None = None
    """host:port of a Kafka to use; None: one of our own."""
    kafka_client: tuple[str, ...] = ()
    """KEY=VALUE for Kafka's client."""
    redis: str | None = None
    """URL of a Redis or Valkey to use; None: a cluster of our own."""
    kafka_jars: Path | None = None
    """Where the jars of Kafka are; None: fetched, if need be."""
    state: Path | None = None
    """Where data and logs are kept; None: in a directory removed at the end."""
    partitions: int = 2
    """Of each topic. One joiner and one learner have all of them here; more take more turns."""
    buckets: int = 8
    """Few: each is a call in every push and an entry to every follower, and there are two nodes."""
    host: str = "127.0.0.1"
    """That the server listens on."""
    port: int = 0
    """Of the server; 0: any free one."""
    port_may_differ: bool = False
    """Take a free port if somebody has that one."""
    evaluated: bool = True
    """Whether live evaluation runs beside the others, and the server logs what it answers."""
    ready_within_s: float = 120.0
    """From the start of the parts until all of them work: 3 to 5 s on an idle machine."""


class LocalPipeline:
    """Everything between an event and an answer. A context manager: leaving it stops all of it.

    A temporary directory is kept, with the logs in it, if a part failed.
    """

    def __init__(self, settings: PipelineSettings, steps: SetupProgress) -> None:
        """Read the spec, nothing else. Raises SpecError, BadOption."""
        self.spec = load_spec(settings.model)
        self._settings, self._steps = settings, steps
        self._machine = LocalServices(
            kafka=settings.kafka,
            redis=settings.redis,
            jars_directory=settings.kafka_jars,
            directory=settings.state,
            steps=steps,
        )
        self._cleanup = contextlib.ExitStack()
        self._port = _port(settings)
        watched = ("evaluation",) if settings.evaluated else ()
        self._metrics = {name: free_port() for name in ("joiner", "learner", "keeper", *watched)}

    def start(self, stop: threading.Event) -> bool:
        """Start everything; return whether all of it works, False if told to stop before.

        Raises what an operator has to read: StackError, StreamError, StoreError, DeployError.
        """
        steps, spec, settings = self._steps, self.spec, self._settings
        machine = self._cleanup.enter_context(self._machine)
        if stop.is_set():
            return False
        self.kafka = kafka_settings(machine.kafka, settings.kafka_client)
        ensure_topics(self.kafka, topics_for(spec.name, settings.partitions))
        ensure_predictions(self.kafka, settings.partitions)
        self.store: Store = open_store(machine.redis, spec.name)
        self._cleanup.callback(self.store.close)
        self.store.create(
            Shape(spec.name, settings.buckets, spec.width, spec.fingerprint, spec.text)
        )
        steps.step("compiling, which is done once")
        warm(spec)
        if stop.is_set():
            return False
        self.supervisor = self._cleanup.enter_context(
            Supervisor(
                machine.directory / "logs", remove=machine.remove, on_restart=self._restarted
            )
        )
        for part in self._parts(machine.kafka, machine.redis):
            self.supervisor.start(part)
        steps.step(f"logs in {machine.directory / 'logs'}")
        if not self._wait_ready(stop):
            return False
        self.arrival = Drain(self.kafka, spec, self.store)
        self._cleanup.callback(self.arrival.close)
        steps.step(f"{spec.name} is served at {self.address}")
        return True

    @property
    def address(self) -> str:
        """Of the server."""
        host = self._settings.host
        named = "127.0.0.1" if host == "0.0.0.0" else host  # noqa: S104  (any is also this one)
        return f"http://{named}:{self._port}"

    def check(self) -> None:
        """Raise PartFailed if a part refused to run or kept dying."""
        try:
            self.supervisor.check()
        except PartFailed:
            self._machine.keep()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._cleanup.close()

    def _parts(self, kafka: str, redis: str) -> list[SupervisedPart]:
        settings = self._settings
        spec = ("--model", str(settings.model.resolve()))
        to_kafka = ("--kafka", kafka)
        # in the environment, because other users can read passwords on command lines
        client = client_variable(settings.kafka_client)
        secrets = {**client, "HEADRACE_REDIS": redis}

        def metrics(name: str) -> tuple[str, ...]:
            return "--metrics-port", str(self._metrics[name])

        listen = ("--host", settings.host, "--port", str(self._port), "--metrics-port", "0")
        share = "1" if settings.evaluated else "0"
        answers = ("--alias", f"{PRODUCTION}={self.spec.name}", "--predictions-share", share)
        name = ("--instance", "one-machine")
        parts = [
            SupervisedPart(
                "server", ("serving", "run", *spec, *to_kafka, *listen, *answers), secrets
            ),
            SupervisedPart(
                "keeper", ("pserver", "keep", *spec, *to_kafka, *metrics("keeper")), secrets
            ),
            SupervisedPart(
                "learner",
                ("learner", "run", *spec, *to_kafka, *name, *metrics("learner")),
                secrets,
            ),
            SupervisedPart(
                "joiner", ("ingest", "join", *spec, *to_kafka, *name, *metrics("joiner")), client
            ),
        ]
        if settings.evaluated:
            evaluate = ("evaluate", "run", *spec, *to_kafka, *name, *metrics("evaluation"))
            parts.append(SupervisedPart("evaluation", evaluate, client, gives_way=True))
        return parts

    def _wait_ready(self, stop: threading.Event) -> bool:
        """Wait until the server has its copy, the others say how they are, and evaluation folds."""
        waited_for = {
            "server": (f"{self.address}/health/ready", b""),
            **{
                name: (f"http://127.0.0.1:{port}/metrics", _SAID.get(name, b""))
                for name, port in self._metrics.items()
            },
        }
        deadline_s = time.monotonic() + self._settings.ready_within_s
        patient_until_s = time.monotonic() + _PATIENCE_S
        while waited_for and not stop.is_set():
            self.check()
            waited_for = {name: each for name, each in waited_for.items() if not _answers(*each)}
            if set(waited_for) == {"evaluation"} and time.monotonic() > patient_until_s:
                break  # it gives way to the others, and they work
            if waited_for and time.monotonic() > deadline_s:
                self._machine.keep()
                raise PartFailed(
                    f"expected every part to work within {self._settings.ready_within_s:.0f} s, "
                    f"found no answer from {', '.join(waited_for)}; logs in "
                    f"{self._machine.directory / 'logs'}"
                )
            if waited_for:
                stop.wait(_LOOK_S)
        return not stop.is_set()

    def _restarted(self, restart: Restart) -> None:
        self._steps.step(f"{restart.part} died (status {restart.status}) and was started again")


def _port(settings: PipelineSettings) -> int:
    wanted, differs = settings.port, settings.port_may_differ
    if wanted and (not differs or take_port(wanted, settings.host)):
        return wanted
    return free_port()


def _answers(url: str, said: bytes) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=1.0) as answer:  # noqa: S310  (ours, http)
            return answer.status == 200 and said in answer.read()
    except OSError:
        return False
