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
from headrace.ingest.kafka.protocols import Source
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
        earliest, latest = OffsetSpec.earliest(), OffsetSpec.latest()  # type: ignore[no-untyped-call]
        try:
            firsts = self._offsets(admin, wanted, earliest)
            ends = self._offsets(admin, wanted, latest)
        except KafkaUnreachable:
            self._admin = None  # after an outage it may wait for a broker that it never finds again
            raise
        return {source: (firsts[source], ends[source]) for source in wanted}

    def _offsets(
        self, admin: AdminClient, sources: list[Source], spec: OffsetSpec
    ) -> dict[Source, int]:
        with translated("asking for the bounds of logs", self._settings.bootstrap):
            answers = admin.list_offsets(
                {partition_of(self._settings, source): spec for source in sources},
                isolation_level=IsolationLevel.READ_COMMITTED,
                request_timeout=self._settings.connect_timeout_s,
            )
            names = self._settings.names
            return {names.source(at): answer_of(each).offset for at, each in answers.items()}
