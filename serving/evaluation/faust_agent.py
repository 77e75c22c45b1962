"""The Faust application of evaluation: an agent that folds rows, and a table that survives.

Faust provides a consumer group whose members take over from each other, and a table that is a
dictionary in memory and a compacted topic in Kafka. `Evaluator` uses both without depending on
Faust.

The rows topic and the table have one partition each, so the same member gets both. The agent
acknowledges a message once its writes are queued, and Faust commits an offset after Kafka has all
earlier writes. The table is in memory: a recovery reads the changelog, whose size is that of the
open minutes.

Feeders write rows in transactions, so the consumer must not read aborted ones. Faust sets that
isolation level only in its exactly-once mode. Here the level is set directly, because that mode is
not used. Windowed tables (they do not expire after a recovery), writes from timers (Faust refuses
them) and Faust's web server are not used either.
"""

import logging
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import faust
import msgspec
from faust.transport.drivers import aiokafka as driver

from headrace.ingest.kafka.settings import KafkaSettings
from headrace.ingest.kafka.topics import LARGEST_MESSAGE_BYTES
from headrace.serving.errors import ServingError
from headrace.serving.evaluation.evaluator import EvaluationRules, Evaluator
from headrace.serving.evaluation.messages import UnreadableRows
from headrace.serving.evaluation.windows import (
    RESULTS,
    WindowMetrics,
    Windows,
    newest_windows,
    settled_between,
)

log = logging.getLogger(__name__)

TABLE = "state"
_SHARE = 0.1
"""Share of time for summarizing open minutes. The remaining minutes wait for their turn."""
_MOST_MARKERS = 64
"""Offsets after the last row that may be markers, of committed and of aborted transactions."""
_SESSION_S = 10.0
"""Time after which another member takes over from a dead one."""


def group_of(model: str) -> str:
    """Return the consumer group of a model's agent, and prefix of its changelog's topic."""
    return f"headrace.{model}.evaluation"


def rows_topic(model: str) -> str:
    """Return the topic that a model's feeders write."""
    return f"evaluation-rows.{model}"


def changelog_topic(model: str) -> str:
    """Return the changelog topic of the table."""
    return f"{group_of(model)}-{TABLE}-changelog"


class EvaluationAgent:
    """The evaluation in this process while it is assigned the rows."""

    def __init__(
        self,
        model: str,
        rules: EvaluationRules,
        sources: Sequence[str],
        windows: Windows,
        publish_s: float,
    ) -> None:
        """sources: partitions to evaluate. publish_s: interval between publications."""
        self.model, self.publish_s = model, publish_s
        self._rules, self._sources, self._windows = rules, sources, windows
        self.evaluation: Evaluator | None = None
        self.figures: list[WindowMetrics] = []
        self._published: dict[str, bytes] = {}
        self._settled_ms: int | None = None
        """End of the newest closed minute at the last publication."""

    @property
    def folded(self) -> int | None:
        """The last folded offset; None while another process folds. Safe to read in any thread."""
        evaluation = self.evaluation
        return None if evaluation is None else evaluation.state.offset

    def behind(self, end: int) -> bool:
        """Return whether rows before `end`, the first offset not yet in Kafka, are not folded.

        Markers of transactions have offsets and are never folded, so a few offsets are no backlog.
        """
        folded = self.folded
        return folded is not None and end - folded > _MOST_MARKERS

    def of(self, table: Mapping[bytes, bytes]) -> Evaluator:
        """Return the evaluation; restored from the table on the first call."""
        if self.evaluation is None:
            self.evaluation = Evaluator(self._rules, self._sources)
            self.evaluation.restore((key.decode(), value) for key, value in table.items())
            offset = self.evaluation.state.offset
            log.info("evaluating %s from offset %d on", self.model, offset)
        return self.evaluation

    def forget(self) -> None:
        """Drop the evaluation: the rows were assigned to another process."""
        self.evaluation, self.figures, self._published = None, [], {}
        self._settled_ms = None

    def settled(self) -> list[tuple[str, bytes]]:
        """Return the minutes that closed since the last call, but for the newest."""
        evaluation = self.evaluation
        if evaluation is None or not evaluation.closed:
            return []
        after_ms, newest_ms = self._settled_ms, max(evaluation.closed)
        self._settled_ms = newest_ms + evaluation.rules.pane_ms
        if after_ms is None:
            return []
        found = settled_between(evaluation, self.model, self._windows, after_ms)
        return [(each.key, msgspec.json.encode(each)) for each in found]

    def changed(self) -> dict[str, bytes | None]:
        """Return the changes since the last call, by key; None: remove the key."""
        if self.evaluation is None:
            return {}
        enough_s = time.monotonic() + _SHARE * self.publish_s
        self.figures = newest_windows(
            *(self.evaluation, self.model, self._windows), lambda: time.monotonic() > enough_s
        )
        now = {each.key: msgspec.json.encode(each) for each in self.figures}
        changed: dict[str, bytes | None] = {
            key: value for key, value in now.items() if self._published.get(key) != value
        }
        changed |= dict.fromkeys(self._published.keys() - now.keys())
        self._published = now
        return changed


def make_app(
    keeper: EvaluationAgent,
    kafka: KafkaSettings,
    instance: str,
    failed: Callable[[Exception], None],
    data_directory: str,
) -> faust.App:
    """Return the application.

    instance: stable over restarts: the group then returns the partition at once. failed: takes the
    error that ends the agent.
    """
    # Faust knows physical names only; its changelog's name begins with that of the application
    physical = kafka.names.physical
    name, source = group_of(keeper.model), physical(rows_topic(keeper.model))
    app = faust.App(physical(name), **_configuration(kafka, instance, data_directory))
    app.transport = _Committed(app.conf.broker_consumer, app)
    raw: dict[str, Any] = {"key_type": bytes, "value_type": bytes}
    rows = app.topic(source, partitions=1, **raw)
    results = app.topic(physical(RESULTS), **raw)
    table = app.Table(TABLE, partitions=1, **raw)

    @app.agent(rows, concurrency=1, name=f"{name}.fold")
    async def fold(stream: Any) -> None:
        unacknowledged = stream.noack()
        async for event in unacknowledged.events():
            try:
                _apply(table, keeper.of(table).fold(event.message.offset, event.value))
            except Exception as error:  # noqa: BLE001 - the process ends with it
                # not acknowledged: the next process gets the same message
                failed(_explained(error, keeper.model, event.message.offset))
                return
            await unacknowledged.ack(event)

    @app.timer(interval=keeper.publish_s)
    async def publish() -> None:
        for key, value in [*keeper.settled(), *keeper.changed().items()]:
            await results.send(key=key.encode(), value=value)

    async def on_revoked(*sent: Any, **_: Any) -> None:
        revoked = sent[1]  # sent[0] is the application
        if any(partition.topic == source for partition in revoked):
            keeper.forget()

    app.on_partitions_revoked.connect(on_revoked, weak=False)
    return app


def _apply(table: Any, writes: Any) -> None:
    for key, value in writes:
        name = key.encode()
        if value is not None:
            table[name] = value
        elif name in table:
            del table[name]


def _explained(error: Exception, model: str, offset: int) -> Exception:
    if isinstance(error, UnreadableRows):
        return ServingError(f"{rows_topic(model)}, offset {offset}: {error}")
    return error


class _DaemonThread(driver.AIOKafkaConsumerThread.Worker):  # type: ignore[misc,valid-type]
    """A thread that does not keep the process: it may wait for Kafka for ever."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.daemon = True


class _CommittedThread(driver.AIOKafkaConsumerThread):
    """Faust's consumer with the isolation level `read_committed`."""

    Worker = _DaemonThread

    def _create_worker_consumer(self, transport: Any) -> Any:
        consumer = super()._create_worker_consumer(transport)
        if not hasattr(consumer, "_isolation_level"):
            raise ServingError("expected an aiokafka consumer with _isolation_level, got none")
        consumer._isolation_level = "read_committed"  # noqa: SLF001 - read when it starts
        return consumer


class _CommittedConsumer(driver.Consumer):
    def _new_consumer_thread(self) -> driver.AIOKafkaConsumerThread:
        return _CommittedThread(self, loop=self.loop, beacon=self.beacon)


class _Committed(driver.Transport):
    Consumer = _CommittedConsumer


def _configuration(kafka: KafkaSettings, instance: str, data_directory: str) -> dict[str, Any]:
    return {
        "broker": [f"kafka://{each}" for each in kafka.bootstrap.split(",")],
        "broker_credentials": _credentials(kafka.client),
        "broker_session_timeout": _SESSION_S,
        "broker_heartbeat_interval": _SESSION_S / 4,
        "consumer_group_instance_id": instance or None,
        "consumer_auto_offset_reset": "earliest",
        "datadir": data_directory,
        "key_serializer": "raw",
        "value_serializer": "raw",
        "producer_compression_type": "lz4",
        "producer_linger": 0.01,
        "producer_max_request_size": LARGEST_MESSAGE_BYTES,
        "store": "memory://",
        "stream_wait_empty": False,
        "table_standby_replicas": 0,
        # headrace creates the topics: Faust's would have one replica
        "topic_allow_declare": False,
        "topic_disable_leader": True,
        "topic_partitions": 1,
        "web_enabled": False,
    }


_KNOWN = frozenset(
    {
        "security.protocol",
        *("sasl.mechanism", "sasl.mechanisms", "sasl.username", "sasl.password"),
        *("ssl.ca.location", "ssl.certificate.location", "ssl.key.location", "ssl.key.password"),
    }
)


def _credentials(client: Mapping[str, str]) -> Any:
    """Translate librdkafka's settings of authentication for Faust's client."""
    unknown = [key for key in client if key.startswith(("sasl.", "ssl.")) and key not in _KNOWN]
    protocol = client.get("security.protocol", "plaintext").upper()
    mechanism = client.get("sasl.mechanism", client.get("sasl.mechanisms", "PLAIN"))
    if unknown or protocol not in {"PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"}:
        raise ServingError(
            f"--kafka-client / HEADRACE_KAFKA_CLIENT: expected settings that evaluation's client "
            f"supports ({', '.join(sorted(_KNOWN))}), got "
            f"{', '.join(sorted(unknown)) or f'security.protocol={protocol}'}"
        )
    context = None
    if protocol.endswith("SSL"):
        context = ssl.create_default_context(cafile=client.get("ssl.ca.location"))
        if "ssl.certificate.location" in client:
            context.load_cert_chain(
                client["ssl.certificate.location"],
                client.get("ssl.key.location"),
                client.get("ssl.key.password"),
            )
    if protocol == "SSL":
        return faust.SSLCredentials(context)
    if protocol == "PLAINTEXT":
        return None
    return faust.SASLCredentials(
        username=client.get("sasl.username"),
        password=client.get("sasl.password"),
        ssl_context=context,
        mechanism=mechanism,
    )
