"""Measures by how much the clocks of Kafka's brokers are ahead of this machine's. Writes nothing.

Kafka shows a broker's time only as the append time of a message. So `read_clocks` asks for the ends
of the topics and waits for messages of other processes behind them. Such a message was appended
between the question and its arrival. Its leader's clock is therefore ahead by at most the append
time less the time of the question, and by at least the append time less the time of arrival.
Without messages, nothing is known.

*Refused:* to write a message, which needs the right to write events.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from typing import NamedTuple

from headrace.deploy.operations.check_result import CheckResult, Severity
from headrace.ingest.kafka.advertised_brokers import answering_admin, listed_topics
from headrace.ingest.kafka.protocols import PartitionAssigned, Reader, Record, Source
from headrace.ingest.kafka.reading.consumer import KafkaReader
from headrace.ingest.kafka.settings import KafkaSettings

_WAIT_MS = 2_000
"""For messages: live traffic has some within it."""
_MOST_SKEW_MS = 5_000
"""Followers may have a message later than its leader, which looks like a clock that is behind."""


class ClockRange(NamedTuple):
    """Milliseconds by which a clock is ahead of this machine's: at least and at most."""

    least_ms: int
    most_ms: int

    @property
    def off_ms(self) -> int:
        """The least difference; negative: behind."""
        return max(0, self.least_ms) + min(0, self.most_ms)


def read_clocks(
    settings: KafkaSettings, topics: Iterable[str], now_ms: Callable[[], int]
) -> dict[int, ClockRange]:
    """Return the clocks of brokers by their ids, as far as messages of these topics tell.

    now_ms: Unix time. Raises the errors of KafkaReader.
    """
    listed = listed_topics(answering_admin(settings), settings).topics
    there = [topic for topic in topics if settings.names.physical(topic) in listed]
    leaders = {
        Source(topic, partition): found.leader
        for topic in there
        for partition, found in listed[settings.names.physical(topic)].partitions.items()
    }
    if not there:
        return {}
    # a transaction that is open would hide its messages until they are old
    with closing(KafkaReader(settings, None, there, read_committed=False)) as reader:
        return measured(reader, leaders, now_ms)


def measured(
    reader: Reader, leaders: Mapping[Source, int], now_ms: Callable[[], int]
) -> dict[int, ClockRange]:
    """Return the clocks of the leaders whose partitions get messages; see `read_clocks`."""
    assigned = [each.source for each in reader.poll(0.0) if isinstance(each, PartitionAssigned)]
    asked_ms = now_ms()
    reader.start({source: reader.bounds(source)[1] for source in assigned})
    found: dict[int, ClockRange] = {}
    while now_ms() < asked_ms + _WAIT_MS and len(found) < len({*leaders.values()}):
        for event in reader.poll(0.1):
            if isinstance(event, Record):
                ahead = ClockRange(event.append_ms - now_ms(), event.append_ms - asked_ms)
                found.setdefault(leaders[event.source], ahead)
    return found


def check_broker_clocks(clocks: Mapping[int, ClockRange], window_ms: int) -> Iterator[CheckResult]:
    """Check that brokers date events right. window_ms: the label window of the model."""
    for broker, clock in sorted(clocks.items()):
        off_ms = clock.off_ms
        if abs(off_ms) <= _MOST_SKEW_MS:
            continue
        late = off_ms <= -window_ms
        side = "ahead" if off_ms > 0 else "behind"
        yield CheckResult(
            Severity.BROKEN if late else Severity.WARNING,
            "clocks",
            f"broker {broker}",
            f"the time of this machine within {_MOST_SKEW_MS / 1000:g} s",
            f"at least {abs(off_ms) / 1000:.1f} s {side}"
            + (": its impressions are too late for the label window, dead letters" * late),
            "synchronize the clocks of the brokers and of this machine (NTP)",
        )
