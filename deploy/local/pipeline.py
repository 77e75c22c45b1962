"""Runs the whole pipeline on this machine: Kafka, Redis or Valkey, and every part of headrace.

The start order is the reverse of the way of an event, so that every part finds its target running:
services, topics and the model, then server, keeper, learner and joiner, and live evaluation. Each
part is a process of the `headrace` command, under a supervisor that restarts it when it dies. While
they start, transactions rehearse a Kafka that this pipeline started (`BrokerRehearsal`). The caller
sends events to Kafka and reads topics, store and server like any other client.
"""

import contextlib
import threading
import time
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from headrace.deploy.connections import (
    addresses_line,
    client_variable,
    kafka_settings,
    open_store,
)
from headrace.deploy.errors import PartFailed
from headrace.deploy.local.drain import Drain
from headrace.deploy.local.kernel_warmup import warm
from headrace.deploy.local.services.ports import free_port, take_port
from headrace.deploy.local.services.progress import SetupProgress
from headrace.deploy.local.services.services import LocalServices
from headrace.deploy.local.supervisor import Restart, SupervisedPart, Supervisor
from headrace.deploy.options import PipelineOptions
from headrace.ingest.broker_rehearsal import BrokerRehearsal
from headrace.ingest.kafka.topics import ensure_topics, topics_for
from headrace.learner.spec.model_spec import load_spec
from headrace.pserver.store import Shape, Store
from headrace.runtime.http.server import listening_socket
from headrace.runtime.kernels.kernel_cache import compilations_reported
from headrace.runtime.restart_policy import RestartPolicy
from headrace.serving.observers.prediction_log import ensure_predictions

_LOOK_S = 0.05
_READY_WITHIN_S = 240.0
"""Deadline of the start of all parts, which takes 3 to 5 s on an idle machine."""
_EVALUATION_WAIT_S = 15.0
"""The start waits this long for live evaluation, which takes 5 s with a core of its own."""
_METRIC_WHEN_READY = {"evaluation": b"headrace_evaluation_open_panes"}
"""A metric that appears once Faust has its partitions. Its start slows the other parts."""
PRODUCTION = "production"
"""Alias under which the pipeline serves its model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSettings(PipelineOptions):
    """The model to run, the options of the command, and what the command adds to them."""

    model: Path
    """The model spec."""
    port: int = 0
    """Port of the server. 0: any free port."""
    port_may_differ: bool = False
    """Use another free port if `port` is taken."""
    collector_port: int | None = None
    """Port of a collector, which takes events over HTTP. 0: any free port. None: no collector."""
    deployments: bool = False
    """Whether the server loads models and switches aliases as the topic `deployments` says."""
    evaluation_gives_way: bool = True
    """Whether live evaluation has a low priority. The canary of a promotion waits for it."""


class LocalPipeline:
    """A running pipeline. As a context manager, it stops everything at the end.

    If a part failed, the temporary directory with its logs is kept.
    """

    def __init__(self, settings: PipelineSettings, steps: SetupProgress) -> None:
        """Read the spec without starting anything. Raises SpecError, BadOption, AddressTaken."""
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
        self._parts_running = contextlib.ExitStack()
        self.rehearsal: BrokerRehearsal | None = None
        self._port = self._server_port()
        self._collector_port = (
            None
            if settings.collector_port is None
            else self._chosen_port("collector", settings.collector_port, "--collector-port")
        )
        watched = ("evaluation",) if settings.evaluate else ()
        ports = self._machine.ports
        self._metrics = {
            name: ports.take(f"{name} metrics")
            for name in ("joiner", "learner", "keeper", *watched)
        }

    def start(self, stop: threading.Event, prepare: Callable[[], object] = lambda: None) -> bool:
        """Start everything; return True once all parts work, False if `stop` is set before.

        prepare: called once Kafka and the store have the model, before any part starts.
        Raises errors that an operator can fix: DeployError, StreamError, StoreError.
        """
        steps, spec, settings = self._steps, self.spec, self._settings
        machine = self._cleanup.enter_context(self._machine)
        self.supervisor = self._parts_running.enter_context(
            Supervisor(
                machine.directory / "logs", remove=machine.remove, on_restart=self._restarted
            )
        )
        for server in machine.started:
            policy = RestartPolicy(quick_s=server.start_timeout_s)
            self.supervisor.adopt(server, policy)
        if stop.is_set():
            return False
        self.kafka_address = machine.kafka
        self.kafka = kafka_settings(machine.kafka, settings.kafka_client)
        ensure_topics(self.kafka, topics_for(spec.name, settings.partitions))
        ensure_predictions(self.kafka, settings.partitions)
        if machine.kafka_node is not None:
            # a Kafka of the user has been running for long
            self.rehearsal = self._cleanup.enter_context(BrokerRehearsal(self.kafka))
        self.store: Store = open_store(machine.redis, spec.name)
        self._cleanup.callback(self.store.close)
        self.store.create(
            Shape(spec.name, settings.buckets, spec.width, spec.fingerprint, spec.text)
        )
        steps.step("compiling kernels (cached for later runs)", long=True)
        with compilations_reported(lambda count: steps.at_work(f"{count} functions compiled")):
            warm(spec)
        if stop.is_set():
            return False
        prepare()
        for part in self._parts(machine.kafka, machine.redis):
            self.supervisor.start(part)
        steps.step(f"logs in {machine.directory / 'logs'}", long=True)
        if not self._wait_ready(stop):
            return False
        if self.rehearsal is not None:
            self.rehearsal.stop()
        self.arrival = Drain(self.kafka, spec, self.store)
        self._cleanup.callback(self.arrival.close)
        steps.step(f"{spec.name} is served at {self.address}")
        return True

    @property
    def address(self) -> str:
        """URL of the server."""
        return f"http://{_reachable(self._settings.host)}:{self._port}"

    @property
    def addresses(self) -> str:
        """The line for a shell that gives later commands the addresses of Kafka and the store."""
        return addresses_line(self.kafka_address, self._machine.redis)

    @property
    def collector(self) -> str | None:
        """URL of the collector, if there is one."""
        port = self._collector_port
        return None if port is None else f"http://{_reachable(self._settings.host)}:{port}"

    def check(self) -> None:
        """Raise PartFailed if a part refused to start or kept dying."""
        try:
            self.supervisor.check()
        except PartFailed:
            self._machine.keep()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # first, because clients take seconds to close while a server is down
        with self._cleanup:
            self._parts_running.close()

    def _parts(self, kafka: str, redis: str) -> list[SupervisedPart]:
        settings, name = self._settings, ("--instance", "one-machine")
        client = client_variable(settings.kafka_client or ())
        # in the environment, because other users can read passwords on command lines
        secrets = {**client, "HEADRACE_REDIS": redis}
        to_kafka = ("--kafka", kafka)
        model = ("--model", str(settings.model.resolve()), *to_kafka)
        listen = ("--host", settings.host, "--port", str(self._port), "--metrics-port", "0")
        share = "1" if settings.evaluate else "0"
        answers = ("--alias", f"{PRODUCTION}={self.spec.name}", "--predictions-share", share)
        follow = ("--deployments",) if settings.deployments else ()
        serve = ("serving", "run", *model, *listen, *answers, *follow)
        window = ("--window", str(settings.evaluation_window))
        watched: dict[str, tuple[tuple[str, ...], Mapping[str, str]]] = {
            "keeper": (("pserver", "keep"), secrets),
            "learner": (("learner", "run", *name), secrets),
            "joiner": (("ingest", "join", *name), client),
            "evaluation": (("evaluate", "run", *name, *window), client),
        }
        parts = [SupervisedPart("server", serve, secrets)]
        for part, (words, environment) in watched.items():
            if part in self._metrics:
                at = "--metrics-host", settings.metrics_host, "--metrics-port"
                arguments = (*words, *model, *at, str(self._metrics[part]))
                way = part == "evaluation" and settings.evaluation_gives_way
                parts.append(SupervisedPart(part, arguments, environment, gives_way=way))
        if self._collector_port is not None:
            at = "--host", settings.host, "--port"
            collect = ("ingest", "collect", *to_kafka, *at, str(self._collector_port))
            parts.append(SupervisedPart("collector", collect, client))
        return parts

    def _wait_ready(self, stop: threading.Event) -> bool:
        """Wait until every part is ready: it has its rows, or its partitions."""
        settings = self._settings
        waited_for = {
            "server": (f"{self.address}/health/ready", b""),
            **{
                name: (
                    f"http://{_reachable(settings.metrics_host)}:{port}"
                    + ("/metrics" if name in _METRIC_WHEN_READY else "/health/ready"),
                    _METRIC_WHEN_READY.get(name, b""),
                )
                for name, port in self._metrics.items()
            },
        }
        if self.collector is not None:
            waited_for["collector"] = (f"{self.collector}/health/ready", b"")
        deadline_s = time.monotonic() + _READY_WITHIN_S
        patient_until_s = time.monotonic() + _EVALUATION_WAIT_S
        while waited_for and not stop.is_set():
            self.check()
            waited_for = {name: each for name, each in waited_for.items() if not _answers(*each)}
            if set(waited_for) == {"evaluation"} and time.monotonic() > patient_until_s:
                break  # it has low priority, and all other parts work
            if waited_for and time.monotonic() > deadline_s:
                self._machine.keep()
                raise PartFailed(
                    f"expected every part to work within {_READY_WITHIN_S:.0f} s, "
                    f"got no answer from {', '.join(waited_for)}; logs in "
                    f"{self._machine.directory / 'logs'}"
                )
            if waited_for:
                self._steps.at_work(f"waiting for {', '.join(waited_for)}")
                stop.wait(_LOOK_S)
        return not stop.is_set()

    def _server_port(self) -> int:
        settings = self._settings
        if settings.port and settings.port_may_differ:
            return settings.port if take_port(settings.port, settings.host) else free_port()
        return self._chosen_port("server", settings.port, "--port / HEADRACE_PORT")

    def _chosen_port(self, name: str, port: int, setting: str) -> int:
        """Return this port; for 0, the one of earlier runs or a free one. Raises AddressTaken.

        Without this check, the server would refuse to start a minute later. Until then, another
        server on the port would answer in its place.
        """
        if not port:
            return self._machine.ports.take(name)
        with listening_socket(self._settings.host, port, setting):
            return port

    def _restarted(self, restart: Restart) -> None:
        self._steps.step(restart.in_words())


def _reachable(host: str) -> str:
    """Return an address of this machine that reaches a server which listens on `host`."""
    return "127.0.0.1" if host == "0.0.0.0" else host  # noqa: S104


def _answers(url: str, expected: bytes) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=1.0) as answer:  # noqa: S310  (ours, http)
            return answer.status == 200 and expected in answer.read()
    except OSError:
        return False
