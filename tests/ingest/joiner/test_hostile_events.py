"""Events of any content against the real size limits: none can end a joiner."""

import threading
from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.ingest.events.contract import Reason
from headrace.ingest.examples.batch import pack, unpack
from headrace.ingest.examples.splitting import Cut, cut
from headrace.ingest.joiner.core.input import EventSide
from headrace.ingest.joiner.joiner_process import JoinerSettings, run_joiner
from headrace.ingest.kafka.producer import KafkaWriter
from headrace.ingest.kafka.protocols import Source
from headrace.ingest.kafka.reading.bounded_reader import read_all
from headrace.ingest.kafka.topics import LARGEST_MESSAGE_BYTES, examples_topic
from tests.effort import examples
from tests.ingest.joiner.joined import DEADLINE_S, Joined
from tests.ingest.joiner.partition import Partition, records, shown, tick

END = tick(10**6)
SIZES = st.sampled_from([0, 1, 10, 1_000, 60_000, 200_000, 900_000])


def event(i: int, id_bytes: int, items: int, text_bytes: int) -> bytes:
    """An impression with an id, a bag and a slice of these sizes."""
    text, bag = "t" * text_bytes, list(range(items))
    return shown(f"{i}-" + "x" * id_bytes, i, user=text, device=text, tags=bag, words=bag)


@settings(deadline=None, max_examples=examples(15))
@given(st.lists(st.tuples(SIZES, SIZES, SIZES), min_size=1, max_size=4), st.integers(1, 12))
def test_every_event_is_in_a_message_that_kafka_takes_or_a_dead_letter(
    shapes: list[tuple[int, int, int]], copies: int
) -> None:
    partition = Partition()
    sent = [event(i, *shapes[i % len(shapes)]) for i in range(copies * len(shapes))]
    partition.offer(EventSide.IMPRESSIONS, records(EventSide.IMPRESSIONS, [*sent, END]))
    partition.offer(EventSide.CLICKS, records(EventSide.CLICKS, [END]))
    joined = partition.joiner.advance(0)
    assert {each.reason for each in joined.dead} <= {Reason.TOO_LARGE}
    assert len(joined.examples) + len(joined.dead) == len(sent)
    messages = [pack(part) for part in cut(joined.examples, Cut())]
    assert max(map(len, messages), default=0) < LARGEST_MESSAGE_BYTES
    back = [unpack(message, partition.fields) for message in messages]
    assert sum(map(len, back)) == len(joined.examples)


def test_a_backlog_of_large_events_is_joined_on_a_real_kafka(
    kafka: str, fresh_name: Callable[[str], str]
) -> None:
    joined = Joined.fresh(kafka, fresh_name, 1)
    writer, count, bag = KafkaWriter(joined.settings), 1_500, list(range(2_000))
    for i in range(count):
        sent = shown(f"{i}", i, article=i, device="phone", words=bag)
        writer.send(Source(joined.topics.impressions, 0), sent)
    for topic in (joined.topics.impressions, joined.topics.clicks):
        writer.send(Source(topic, 0), END)
    writer.close()
    stop, failures = threading.Event(), []

    def run() -> None:
        settings = JoinerSettings(topics=joined.topics)
        try:
            run_joiner(settings, joined.settings, joined.name, joined.fields, stop)
        except Exception as error:
            failures.append(error)
            raise

    joiner = threading.Thread(target=run)
    joiner.start()
    try:
        joined.wait(lambda: bool(failures) or joined.state.read().examples == count)
    finally:
        stop.set()
        joiner.join(DEADLINE_S)
    assert failures == []
    messages = [record.value for record in read_all(joined.settings, examples_topic(joined.name))]
    assert sum(map(len, messages)) > LARGEST_MESSAGE_BYTES
    assert max(map(len, messages)) < LARGEST_MESSAGE_BYTES
