"""Runs transactions on a Kafka broker that has just started, before events wait for them.

A broker loads and compiles the code of a request when the first one arrives, and creates its
internal topics. The first transactions of a joiner therefore took ten times as long as later ones,
and the clicks behind them waited. The rehearsal makes the same requests as a joiner: messages to
two partitions and the offsets of a group, in one transaction. Its topic and its group have names of
their own, and both are deleted at the end.

*Refused:* a rehearsal by the joiner itself. It would need topics in a Kafka of the user, which has
been running for long and gains nothing.
"""

import logging
import secrets
from contextlib import closing

from confluent_kafka.admin import AdminClient

from headrace.ingest.errors import StreamError
from headrace.ingest.kafka.error_translation import answer_of, translated
from headrace.ingest.kafka.protocols import Committed, Source
from headrace.ingest.kafka.reading.offset_store import KafkaOffsets
from headrace.ingest.kafka.retry import retry_for
from headrace.ingest.kafka.settings import KafkaSettings
from headrace.ingest.kafka.topics import TopicSpec, ensure_topics
from headrace.ingest.kafka.transactions import KafkaTransactions, Outgoing
from headrace.runtime.background_thread import BackgroundThread

log = logging.getLogger(__name__)

TRANSACTIONS = 60
"""Later ones hardly become faster."""
_MESSAGE = bytes(1000)
_END_S = 10.0
"""Longest wait for the transaction under way, and for Kafka to delete the topic."""


class BrokerRehearsal(BackgroundThread):
    """Rehearses in a thread, from `start` until all transactions are done or `stop` is called."""

    def __init__(self, settings: KafkaSettings, transactions: int = TRANSACTIONS) -> None:
        super().__init__(self._run, "broker rehearsal", _END_S)
        self._settings, self._transactions = settings, transactions
        self.name = f"rehearsal-{secrets.token_hex(4)}"
        """The topic, the group and the transactional id."""
        self.done = 0
        """Transactions so far."""

    def wait(self) -> None:
        """Wait until every transaction is done and the topic is deleted."""
        self._thread.join()

    def _run(self) -> None:
        try:
            ensure_topics(self._settings, [TopicSpec(self.name, 2)])
            try:
                self._rehearse()
            finally:
                self._delete()
        except StreamError as error:
            # the parts work without it, and report the same trouble if it lasts
            log.info("no rehearsal of Kafka's transactions: %s", error)

    def _rehearse(self) -> None:
        sources = [Source(self.name, partition) for partition in (0, 1)]
        with (
            closing(KafkaOffsets(self._settings, self.name)) as offsets,
            closing(KafkaTransactions(self._settings, self.name, offsets)) as transactions,
        ):
            while self.done < self._transactions and not self._ended.is_set():
                place = Committed(self.done, "", -1)
                messages = [Outgoing(source, _MESSAGE) for source in sources]
                transactions.write(messages, dict.fromkeys(sources, place))
                self.done += 1

    def _delete(self) -> None:
        retry_for(_END_S)(self._delete_topic)
        retry_for(_END_S)(self._delete_group)

    def _delete_topic(self) -> None:
        name = self._settings.names.physical(self.name)
        admin = AdminClient(self._settings.connection())
        with translated(f"deleting topic {name}", self._settings.bootstrap):
            answer_of(admin.delete_topics([name])[name])

    def _delete_group(self) -> None:
        # a client that asked before knows a coordinator that may have moved since
        name = self._settings.names.physical(self.name)
        admin = AdminClient(self._settings.connection())
        with translated(f"deleting group {name}", self._settings.bootstrap):
            answer_of(admin.delete_consumer_groups([name])[name])
