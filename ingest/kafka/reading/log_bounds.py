"""Asks for the bounds of logs: the first offset that Kafka still has, and the end.

It has a client of its own, because the Kafka client lets one thread at a time use a consumer. A
thread that polls leaves the consumer only for an instant, so any other thread may wait for it for
minutes.
"""

from collections.abc import Iterable

from confluent_kafka import IsolationLevel
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from headrace.ingest.errors import KafkaUnreachable
from headrace.ingest.kafka.error_translation import answer_of, translated
from headrace.ingest.kafka.protocols import ReadPosition, Source
from headrace.ingest.kafka.reading.consumer_group import partition_of
from headrace.ingest.kafka.settings import KafkaSettings


class LogBounds:
    """The bounds of logs, for one thread beside the reader's."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._admin: AdminClient | None = None

    def __call__(self, sources: Iterable[Source]) -> dict[Source, tuple[int, int]]:
        """Return the first offset and the end of each source; it ends where `Reader.bounds` says.

        Waits up to `connect_timeout_s` twice. Raises KafkaUnreachable, MissingTopic.
        """
        wanted = list(sources)
        if not wanted:
            return {}
        admin = self._admin = self._admin or AdminClient(self._settings.connection())
        committed = IsolationLevel.READ_COMMITTED
        try:
            firsts = log_offsets(self._settings, admin, wanted, EARLIEST, committed)
            ends = log_offsets(self._settings, admin, wanted, LATEST, committed)
        except KafkaUnreachable:
            self._admin = None  # after an outage it may wait for a broker that it never finds again
            raise
        return {source: (firsts[source].offset, ends[source].offset) for source in wanted}


LATEST = OffsetSpec.latest()  # type: ignore[no-untyped-call]
EARLIEST = OffsetSpec.earliest()  # type: ignore[no-untyped-call]


def log_offsets(
    settings: KafkaSettings,
    admin: AdminClient,
    sources: Iterable[Source],
    at: OffsetSpec = LATEST,
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
) -> dict[Source, ReadPosition]:
    """Return the offset and leader epoch (-1: unknown) of each log at its end, or at another place.

    Raises KafkaUnreachable, MissingTopic.
    """
    with translated("asking for offsets of logs", settings.bootstrap):
        answers = admin.list_offsets(
            {partition_of(settings, source): at for source in sources},
            isolation_level=isolation,
            request_timeout=settings.connect_timeout_s,
        )
        found = {settings.names.source(tp): answer_of(each) for tp, each in answers.items()}
    return {
        source: ReadPosition(each.offset, -1 if (epoch := each.leader_epoch) is None else epoch)
        for source, each in found.items()
    }
