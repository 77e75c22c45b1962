"""Tests `headrace ingest collect` as a process, with its own Kafka that tests restart.

That Kafka also has a listener with passwords, which tests the settings passed through to the
client.
"""

import contextlib
import json
import os
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import confluent_kafka
import httpx
import pytest
from confluent_kafka import KafkaError

from headrace.deploy.cli.main import app
from headrace.deploy.errors import BadOption
from headrace.deploy.local.services.ports import free_port
from headrace.ingest.client import CollectorClient, UndeliverableEvent
from headrace.ingest.collector import collector_process as process_module
from headrace.ingest.collector.collector_process import CollectorSettings, run_collector
from headrace.ingest.collector.delivery import Delivery
from headrace.ingest.dead_letters.letter import pack
from headrace.ingest.errors import KafkaRefused, KafkaUnreachable, NotAllowed, StreamError
from headrace.ingest.events.contract import Reason
from headrace.ingest.kafka.producer import KafkaWriter
from headrace.ingest.kafka.protocols import Record, Source
from headrace.ingest.kafka.reading.bounded_reader import read_all
from headrace.ingest.kafka.settings import KafkaSettings
from headrace.ingest.kafka.topics import STATUS_TOPIC, ensure_topics, topics_for
from headrace.ingest.status import unpack
from headrace.runtime.http.http_errors import BadTokens
from tests.deploy.command import Running, running
from tests.ingest.collector.eight_connections import GENEROUS_S, TOKEN, Sent, sending
from tests.ingest.kafka.kafka_with_passwords import KafkaWithPasswords
from tests.running_server import jars, running_server

SETTINGS = CollectorSettings(port=0, tokens=[TOKEN])


@pytest.fixture(scope="module")
def own_kafka(stack_directory: Path) -> Iterator[KafkaWithPasswords]:
    """Run a Kafka that no other test uses, with the event topics; these tests stop and start it."""
    node = KafkaWithPasswords(stack_directory / "collected", jars(), remove=stack_directory)
    with running_server(node):
        ensure_topics(KafkaSettings(node.bootstrap), topics_for("model", 4))
        yield node


@contextlib.contextmanager
def collector(kafka: str, *options: str) -> Iterator[tuple[Running, int]]:
    """Run a collector; yield the process and its port."""
    arguments = ("ingest", "collect", "--kafka", kafka, "--port", "0", *options)
    with running(*arguments, HEADRACE_COLLECT_TOKENS=TOKEN) as process:
        found = process.wait_for(r"collecting on http://127\.0\.0\.1:(\d+)")
        yield process, int(found[1])


@contextlib.contextmanager
def collecting_here(kafka: KafkaSettings, deadline_s: float = 60.0) -> Iterator[int]:
    """Run a collector in a thread of this process; yield its port."""
    stop, ports, ended = threading.Event(), list[int](), list[BaseException]()

    def run() -> None:
        try:
            run_collector(replace(SETTINGS, deadline_s=deadline_s), kafka, stop, ports.append)
        except BaseException as error:  # noqa: BLE001 - handed to the test, which raises it
            ended.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    until(lambda: bool(ports or ended), "it listens")
    try:
        yield ports[0]
    finally:
        stop.set()
        thread.join()
    if ended:
        raise ended[0]


def until(happened: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + GENEROUS_S
    while not happened():
        assert time.monotonic() < deadline_s, what
        time.sleep(0.005)


def post(port: int, name: str) -> httpx.Response:
    event = {"impression_id": name, "timestamp_ms": time.time_ns() // 1_000_000}
    headers = {"authorization": f"Bearer {TOKEN}"}
    url = f"http://127.0.0.1:{port}/v1/clicks"
    return httpx.post(url, json=event, headers=headers, timeout=GENEROUS_S)


def is_ready(port: int) -> bool:
    return httpx.get(f"http://127.0.0.1:{port}/health/ready", timeout=60).status_code == 200


def in_topic(kafka: str, topic: str, stem: str) -> Counter[str]:
    """Return the number of messages in a topic for each key of a stem."""
    keys = [(record.key or b"").decode() for record in read_all(KafkaSettings(kafka), topic)]
    return Counter(key for key in keys if key.startswith(f"{stem}-"))


def restarted(node: KafkaWithPasswords, port: int, count: int, batch: int, stem: str) -> Sent:
    """Send events while Kafka is killed and restarted; return the events sent."""
    with (
        collecting_here(KafkaSettings(node.bootstrap), deadline_s=1.0) as hasty,
        sending(port, count, batch, stem) as sent,
    ):
        until(lambda: post(hasty, f"before-{stem}").status_code == 200, "Kafka answers within 1 s")
        until(lambda: sent.acknowledged.total() > count / 5, "a fifth was acknowledged")
        node.kill()
        at_death = sent.acknowledged.total()
        answer = post(hasty, f"during-{stem}")
        assert answer.status_code == 503
        assert answer.json()["refused"][0]["reason"] == "not_acknowledged"
        until(lambda: not is_ready(hasty), "it noticed")
        node.launch()
        node.wait_ready()
        until(lambda: is_ready(hasty), "it noticed again")
        until(lambda: post(hasty, f"after-{stem}").status_code == 200, "it acknowledges again")
        assert at_death < count
    return sent


def test_every_acknowledged_event_is_in_the_topic_once_across_a_kafka_restart(
    own_kafka: KafkaWithPasswords,
) -> None:
    count = 20_000
    with collector(own_kafka.bootstrap, "--deadline-s", str(GENEROUS_S)) as (process, port):
        sent = restarted(own_kafka, port, count, 50, "short")
        process.process.send_signal(signal.SIGTERM)
        assert process.end() == 0
    assert set(sent.statuses) == {200}, "a slow broker is waited for, not given up"
    found = in_topic(own_kafka.bootstrap, "impressions", "short")
    assert found == sent.acknowledged
    placed = {
        record.source.partition == confluent_kafka.murmur2(record.key or b"", 4)
        for record in read_all(KafkaSettings(own_kafka.bootstrap), "impressions")
    }
    assert placed == {True}


def test_a_stopping_collector_acknowledges_accepted_events_and_accepts_no_more(
    own_kafka: KafkaWithPasswords,
) -> None:
    metrics = free_port()
    with collector(own_kafka.bootstrap, "--metrics-port", str(metrics)) as (process, port):
        assert post(port, "stop-1").status_code == 200
        told: list[httpx.Response] = []
        os.kill(own_kafka.pid, signal.SIGSTOP)
        try:
            waiting = threading.Thread(target=lambda: told.append(post(port, "stop-2")))
            waiting.start()

            def waits() -> bool:
                text = httpx.get(f"http://127.0.0.1:{metrics}/metrics", timeout=60).text
                return "headrace_collector_waiting_events 1.0" in text

            until(waits, "the event waits for Kafka")
            process.process.send_signal(signal.SIGTERM)
            process.wait_for("Shutting down")
            until(lambda: not answers(port), "no more connections are accepted")
            assert process.process.poll() is None
            assert not told
        finally:
            os.kill(own_kafka.pid, signal.SIGCONT)
        waiting.join(GENEROUS_S)
        assert [answer.status_code for answer in told] == [200]
        assert process.end() == 0
        assert TOKEN not in process.output
    assert in_topic(own_kafka.bootstrap, "clicks", "stop") == Counter(["stop-1", "stop-2"])


def test_a_fatal_producer_error_ends_the_collector_process_with_its_reason(
    own_kafka: KafkaWithPasswords, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Delivery] = []

    class Known(Delivery):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            made.append(self)

    monkeypatch.setattr(process_module, "Delivery", Known)
    fatal = KafkaError(KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, "a gap in the sequence", fatal=True)
    with contextlib.ExitStack() as stack:
        port = stack.enter_context(collecting_here(KafkaSettings(own_kafka.bootstrap)))
        assert post(port, "fatal-1").status_code == 200
        made[0]._on_error(fatal)
        until(lambda: not answers(port), "it left by itself")
        with pytest.raises(StreamError, match="a gap in the sequence"):
            stack.close()


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_the_client_delivers_events_to_a_real_collector(own_kafka: KafkaWithPasswords) -> None:
    told: list[UndeliverableEvent] = []
    now_ms = time.time_ns() // 1_000_000
    with (
        collecting_here(KafkaSettings(own_kafka.bootstrap)) as port,
        CollectorClient(f"http://127.0.0.1:{port}", TOKEN, refused=told.append) as client,
    ):
        for i in range(100):
            client.impression({"impression_id": f"client-{i}", "timestamp_ms": now_ms})
        client.click({"impression_id": "client-7", "timestamp_ms": "later"})
        client.click({"impression_id": "client-8", "timestamp_ms": now_ms})
    found = in_topic(own_kafka.bootstrap, "impressions", "client")
    assert found == Counter(f"client-{i}" for i in range(100))
    assert in_topic(own_kafka.bootstrap, "clicks", "client") == Counter(["client-8"])
    assert [(each.reason, each.found) for each in told] == [("bad_time", '"later"')]
    said = [
        unpack(each.value) for each in read_all(KafkaSettings(own_kafka.bootstrap), STATUS_TOPIC)
    ]
    last = [each for each in said if each.process == "collector"][-1]
    assert last.ended, "it said goodbye"
    assert "headrace_collector_events_total" in {each.name for each in last.figures}


def test_the_command_line_shows_repairs_and_resends_dead_letters(
    own_kafka: KafkaWithPasswords, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kafka = own_kafka.bootstrap
    writer = KafkaWriter(KafkaSettings(kafka))
    for i in range(3):
        value = b'{"impression_id":"letter-%d","timestamp_ms":1767225600}' % i
        bad = Record(Source("impressions", 0), i, 1_767_225_600_000, value, b"letter-%d" % i)
        writer.send(Source("dead-letters", 0), pack(bad, Reason.BEFORE_2000))
    writer.close()

    def dead_letters(*words: str) -> None:
        app(["ingest", "dead-letters", *words, "--kafka", kafka], standalone_mode=False)

    dead_letters("--limit", "1")
    shown = capsys.readouterr().out
    assert "3  impressions  before_2000: expected timestamp_ms of the year 2000 or later" in shown
    assert "impressions/0@0, key 'letter-0', 2026-01-01 00:00:00 UTC" in shown
    assert "... and 2 more" in shown
    assert "3 open letters; 0 sent back earlier, 0 discarded" in shown
    dead_letters("--json")
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    lines[0]["event"]["timestamp_ms"] *= 1000
    lines[1]["event"] = None
    repaired = tmp_path / "repaired.ndjson"
    repaired.write_text("".join(f"{json.dumps(line)}\n" for line in lines[:2]))
    for sent, given_up in (("1 event", 1), ("0 events", 0)):
        dead_letters(str(repaired))
        told = capsys.readouterr()
        assert f"{sent} sent back, {given_up} discarded, 1 letter left open" in told.out
    assert "2 repairs have no open letter" in told.err
    function = tmp_path / "repair.py"
    function.write_text(
        "def repair(event, letter):\n"
        "    return {**event, 'timestamp_ms': event['timestamp_ms'] * 1000}\n"
    )
    dead_letters("--with", str(function))
    assert "1 event sent back" in capsys.readouterr().out
    found = in_topic(kafka, "impressions", "letter")
    assert found == Counter(["letter-0", "letter-2"])
    with pytest.raises(BadOption, match="either FILE or --with"):
        dead_letters("-", "--with", str(function))
    with pytest.raises(BadOption, match=r"got .*absent"):
        dead_letters(str(tmp_path / "absent"))


# -------------------------------------------------------------------- errors at the start

ASKED = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}


def start(settings: CollectorSettings, kafka: KafkaSettings) -> None:
    run_collector(settings, kafka, threading.Event())


def test_credentials_of_the_kafka_settings_reach_the_broker(own_kafka: KafkaWithPasswords) -> None:
    client = {**ASKED, "sasl.username": "headrace", "sasl.password": "secret"}
    with collecting_here(KafkaSettings(own_kafka.asking, client=client)) as port:
        assert post(port, "known-1").status_code == 200


def test_a_refused_connection_to_kafka_is_reported_with_its_reason(
    own_kafka: KafkaWithPasswords,
) -> None:
    def asked(**client: str) -> KafkaSettings:
        settings = {key.replace("_", "."): value for key, value in client.items()}
        return KafkaSettings(own_kafka.asking, connect_timeout_s=5.0, client=settings)

    known = {key.replace(".", "_"): value for key, value in ASKED.items()}
    with pytest.raises(NotAllowed, match="Invalid username or password"):
        start(SETTINGS, asked(**known, sasl_username="headrace", sasl_password="guess"))
    with pytest.raises(KafkaUnreachable, match="SSL handshake failed"):
        start(SETTINGS, asked(security_protocol="SSL"))
    with pytest.raises(KafkaRefused, match=r"ssl\.ca\.location failed"):
        start(SETTINGS, asked(security_protocol="SSL", ssl_ca_location="/nowhere"))
    with pytest.raises(KafkaRefused, match=r'No such configuration property: "sasl\.user"'):
        start(SETTINGS, asked(sasl_user="headrace"))


def test_a_collector_that_cannot_start_names_the_setting_to_change() -> None:
    with pytest.raises(BadTokens, match=r"0\.0\.0\.0.*--tokens / HEADRACE_COLLECT_TOKENS"):
        start(replace(SETTINGS, host="0.0.0.0", tokens=()), KafkaSettings("127.0.0.1:9"))
    with pytest.raises(KafkaUnreachable, match=r"127\.0\.0\.1:9: .*--kafka"):
        start(SETTINGS, KafkaSettings("127.0.0.1:9", connect_timeout_s=0.5))
