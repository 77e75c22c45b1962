"""Requests that a broker reads late, with a whole joiner on a real broker: each event counts once.

Kafka has no sequence numbers for requests about transactions. So the copy of a request that waited
in a slow broker, while its transaction ended by other means, may take effect in a later one: it
commits half of it, or old offsets with it. The joiner closes a producer that lost a connection. It
must also be right where the client did not tell (`unnoticed`): its position follows from the topic.
"""

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, Producer

from headrace.ingest.examples.splitting import Cut
from headrace.ingest.joiner.loop import Joiner, JoinerPacing
from headrace.ingest.kafka.client_log import ConnectionLog
from headrace.ingest.kafka.reading.bounded_reader import read_all
from headrace.ingest.kafka.reading.consumer import KafkaReader
from headrace.ingest.kafka.retry import AbortBackoff, retry_for
from headrace.ingest.kafka.settings import KafkaSettings
from headrace.ingest.kafka.topics import TopicSpec, ensure_topics, joiner_group
from headrace.ingest.kafka.transactional_ports import TransactionalPorts
from headrace.ingest.kafka.transactions import KafkaTransactions
from headrace.ingest.kafka.watchdog import Watchdog
from headrace.runtime.clock import steady_ms
from tests.ingest.events_of import Happened, happen
from tests.ingest.joiner.joined import Joined
from tests.ingest.kafka.kafka_behind_proxy import (
    ADD_OFFSETS,
    ADD_PARTITIONS,
    END_TXN,
    INIT_PRODUCER,
    PRODUCE,
    REQUESTS,
    TXN_OFFSET_COMMIT,
    KafkaBehindProxy,
    Moment,
)
from tests.running_server import jars, running_server

pytestmark = pytest.mark.long

MOMENTS = {
    "between transactions": None,
    "before its partitions": Moment(ADD_PARTITIONS),
    "before its first message": Moment(PRODUCE),
    "before its second message": Moment(PRODUCE, 2),
    "between its offsets and a message": Moment(PRODUCE, 2, behind=TXN_OFFSET_COMMIT),
    "before it has offsets": Moment(ADD_OFFSETS),
    "before its offsets": Moment(TXN_OFFSET_COMMIT),
    "before its end": Moment(END_TXN),
}
"""Moments of a later transaction at which a late request arrives."""
COMMITTED_IN_PART = "EndTxn", "between its offsets and a message"
SCENARIOS = [
    pytest.param(
        *(late, moment, noticed), id=f"{late}, {moment}, {'noticed' if noticed else 'unnoticed'}"
    )
    for late in REQUESTS
    for moment in MOMENTS
    for noticed in (False, True)
    # of an earlier epoch, requests are refused at any moment
    if not noticed or moment in (COMMITTED_IN_PART[1], "before its first message", "before its end")
]
PACE = JoinerPacing(lazy_commit_ms=0, cut=Cut(most=5, least=1))
EVENTS, PARTS = 240, 4
ATTEMPTS = 5
"""On a busy machine, the client may give up the transaction before, and with it its producer."""


@pytest.fixture(scope="module")
def own_kafka(stack_directory: Path) -> Iterator[KafkaBehindProxy]:
    directory = stack_directory / "kafka-behind-proxy"
    with running_server(KafkaBehindProxy(directory, jars(), remove=stack_directory)) as node:
        yield node
        node.proxy.stop()


class History:
    """A joiner of one partition, the events sent to it, and a proxy that makes a request late.

    The client may hang in a transaction whose connection broke (`ingest.kafka.watchdog`). Where the
    process would end itself and be started again, another joiner takes over.
    """

    def __init__(self, broker: KafkaBehindProxy, fresh_name: Callable[[str], str]) -> None:
        self.joined = Joined.fresh(broker.bootstrap, fresh_name, 1)
        self.proxy, self.sent = broker.proxy, Counter[str]()
        self.proxy.producer = f"{joiner_group(self.joined.name)}.a".encode()
        self._committed: dict[str, int] | None = None
        self._hung, self._stop = threading.Event(), threading.Event()
        self._killed = False

    def send(self, part: Happened) -> None:
        """Send events, and what a replay sends behind them: both topics have passed their time."""
        last_ms = max(time_ms for time_ms, _, _ in part.shown + part.clicked)
        tick = last_ms, 0, json.dumps({"timestamp_ms": last_ms}).encode()
        part = Happened([*part.shown, tick], [*part.clicked, tick])
        self.joined.send(part)
        topics = self.joined.topics
        self.sent.update({topics.impressions: len(part.shown), topics.clicks: len(part.clicked)})

    def start(self) -> None:
        self._committed = None
        self._hung, self._stop = threading.Event(), threading.Event()
        self._killed = False
        self._running = Future[None]()
        arguments = self._running, self._stop, self._hung
        # a thread that hangs in the client must not hold the interpreter back at its end
        threading.Thread(target=self._ran, args=arguments, daemon=True).start()

    def stop(self) -> None:
        """Let the joiner commit and end."""
        self._stop.set()
        self.wait(self.ended)
        self._running.result()

    def kill(self) -> None:
        """Let the joiner end with the transaction that it is committing."""
        self._killed = True
        self._stop.set()

    def ended(self) -> bool:
        """Whether the joiner has ended."""
        return self._running.done()

    def wait(self, until: Callable[[], bool]) -> None:
        """Wait, and start the joiner again if it hangs."""

        def done() -> bool:
            if self._hung.is_set():
                self.start()
            elif self._running.done() and not self._stop.is_set():
                self._running.result()
            return until()

        self.joined.wait(done)

    def joins(self) -> None:
        """Wait until the joiner has committed everything that was sent."""
        self.wait(self._settled)

    def _settled(self) -> bool:
        return self._committed == self.sent

    def _ran(self, running: Future[None], *events: threading.Event) -> None:
        try:
            self._run(*events)
        except Exception as error:  # noqa: BLE001 - the test raises it
            running.set_exception(error)
        else:
            running.set_result(None)

    def _run(self, stop: threading.Event, hung: threading.Event) -> None:
        joined = self.joined
        group, inputs = joiner_group(joined.name), [joined.topics.impressions, joined.topics.clicks]
        # each message is a request of its own
        single = replace(joined.settings, client={"batch.num.messages": "1"})
        watchdog = Watchdog(threading.Event(), lambda _: hung.set())
        with (
            closing(KafkaReader(joined.settings, group, inputs, instance="a")) as reader,
            closing(KafkaTransactions(single, f"{group}.a", reader, watchdog)) as transactions,
        ):
            aborts = AbortBackoff(60.0, steady_ms, stop.wait)
            ports = TransactionalPorts(reader, transactions, steady_ms, aborts, retry_for(60.0))
            joiner = Joiner(ports, joined.name, joined.fields, joined.topics, PACE)
            while not stop.is_set():
                joiner.step(0.01)
                if not hung.is_set():  # else another joiner has taken over
                    # between steps: another thread would see positions before they are dirty
                    self._committed = _committed(joiner)
            if not self._killed:
                joiner.finish()


def _committed(joiner: Joiner) -> dict[str, int] | None:
    """Return the positions of a joiner in each topic if it has committed them."""
    if any(part.dirty_since_ms is not None for part in joiner.partitions.values()):
        return None
    return {source.topic: offset for source, offset in joiner.positions().items()}


def run(
    history: History,
    late: str,
    moment: str,
    *,
    written: bool = True,
    noticed: bool = False,
    killed: bool = False,
) -> None:
    """Join four parts of a history; a request of the second is late, and arrives in the third.

    written: whether the transaction of the late request is written, as it is sent again. noticed:
    whether the joiner goes on with another producer because of it. killed: whether the joiner ends
    with the transaction in which it arrives, and another one continues.
    """
    happened = happen(seed=47, count=EVENTS, partitions=1)  # no dead letter in the third part
    first, second, third, fourth = happened.parts(PARTS)
    proxy = history.proxy
    history.start()
    history.send(first)
    history.joins()
    proxy.late, proxy.breaks = REQUESTS[late], written
    producers = proxy.count(INIT_PRODUCER)
    history.send(second)
    history.wait(lambda: bool(proxy.held))
    if written:
        history.joins()
    else:
        history.wait(lambda: proxy.count(INIT_PRODUCER) > producers)
    at = MOMENTS[moment]
    if at is None:
        proxy.arrive()
    else:
        then = history.kill if killed else at.then
        proxy.moment = replace(at, seen=at.seen.copy(), then=then)
    history.send(third)
    if killed:
        history.wait(history.ended)
        history.start()
    history.joins()
    assert proxy.moment is None, "the moment never came"
    assert proxy.producers > producers or not noticed
    history.stop()
    history.send(fourth)
    history.start()
    history.joins()
    history.stop()
    assert sorted(history.joined.examples()) == sorted(happened.examples)
    state = history.joined.state.read()
    assert (state.impressions, state.examples) == (EVENTS, len(happened.examples))


@pytest.mark.parametrize(("late", "moment", "noticed"), SCENARIOS)
def test_a_late_request_of_a_written_transaction_changes_no_later_one(
    own_kafka: KafkaBehindProxy,
    fresh_name: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    late: str,
    moment: str,
    noticed: bool,
) -> None:
    if not noticed:
        monkeypatch.setattr(ConnectionLog, "log", lambda *_: None)
    caplog.set_level("WARNING")
    for _ in range(ATTEMPTS):
        run(History(own_kafka, fresh_name), late, moment, noticed=noticed)
        in_part = "a transaction was committed in part" in caplog.text
        if in_part or noticed or (late, moment) != COMMITTED_IN_PART:
            return
    pytest.fail("no transaction was committed in part")


def test_offsets_of_an_earlier_transaction_do_not_set_a_joiner_back(
    own_kafka: KafkaBehindProxy,
    fresh_name: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(ConnectionLog, "log", lambda *_: None)
    caplog.set_level("WARNING")
    run(History(own_kafka, fresh_name), "TxnOffsetCommit", "before its end", killed=True)
    assert "they belong to other examples" in caplog.text


@pytest.mark.parametrize("moment", list(MOMENTS)[3:])
@pytest.mark.parametrize("late", REQUESTS)
def test_a_late_request_of_a_failed_transaction_changes_no_later_one(
    own_kafka: KafkaBehindProxy,
    fresh_name: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
    late: str,
    moment: str,
) -> None:
    monkeypatch.setattr("headrace.ingest.kafka.transactions.TRANSACTION_TIMEOUT_MS", 3_000)
    run(History(own_kafka, fresh_name), late, moment, written=False)


def test_a_late_commit_ends_the_next_transaction_of_the_same_producer(
    own_kafka: KafkaBehindProxy, fresh_name: Callable[[str], str]
) -> None:
    """Kafka behaves so with librdkafka's version of the protocol; with another, drop the rest."""
    proxy, topic = own_kafka.proxy, fresh_name("same")
    settings = KafkaSettings(own_kafka.bootstrap)
    ensure_topics(settings, [TopicSpec(topic, 1)])
    producer = Producer({"bootstrap.servers": own_kafka.bootstrap, "transactional.id": topic})
    producer.init_transactions(30.0)
    proxy.producer, proxy.late, proxy.breaks = topic.encode(), END_TXN, True
    for value in (b"one", b"two"):
        producer.begin_transaction()
        producer.produce(topic, value, partition=0)
        producer.flush(30.0)
        if value == b"one":
            producer.commit_transaction(30.0)
    proxy.arrive()
    assert [record.value for record in read_all(settings, topic)] == [b"one", b"two"]
    with pytest.raises(KafkaException, match="INVALID_TXN_STATE"):
        producer.close()
    ends = {version for kind, version in proxy.seen if kind == END_TXN}
    assert max(ends) < 5, "the client now speaks KIP-890 part 2: epochs rise by themselves"
