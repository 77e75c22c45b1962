"""Errors between a process and Kafka, classed by what to do next.

Only `KafkaUnreachable` is worth waiting for, and only `TransactionAborted` is worth starting over
from the last commit. Every other error stops the process, because going on would lose an event,
count one twice, or read the wrong data. Unusable events are data, not errors: they go to the topic
of dead letters.

    StreamError
    ├── KafkaUnreachable      wait, or correct the address
    ├── TransactionAborted    restore from the last commit and continue
    ├── Fenced                another instance took over: stop
    ├── NotAllowed            credentials or access rights: stop
    ├── MissingTopic          create it: stop
    ├── TopicMismatch         a topic differs from what the model needs: stop
    ├── OffsetGone            retention overtook the reader, or the topic was recreated: stop
    ├── WriteRefused          a message that Kafka does not accept: stop
    ├── DamagedMessage        bytes that cannot be decoded: stop, until an operator skips them
    ├── BadCheckpoint         a committed offset is not of this joiner and model: stop
    └── KafkaRefused          any other refusal of Kafka or its client: stop

`ingest.kafka.error_translation` turns errors of the Kafka client into these.
"""


class StreamError(Exception):
    """Any failure of Kafka. The message names what was expected, what was found, and where."""


class KafkaUnreachable(StreamError):
    """No broker answered in time; the message names the address and its setting."""


class TransactionAborted(StreamError):
    """The transaction wrote nothing. Restore from the last commit and continue."""


class Fenced(StreamError):
    """Another instance with the same name took over and has all that was committed. Stop."""


class NotAllowed(StreamError):
    """The broker refused the credentials or the request. Stop."""


class MissingTopic(StreamError):
    """A topic does not exist. Stop; `ensure_topics` creates it."""


class TopicMismatch(StreamError):
    """A topic exists with other partitions or settings than the model needs. Stop."""


class OffsetGone(StreamError):
    """The offset to read from was deleted, or is not written yet. Stop."""


class WriteRefused(StreamError):
    """Kafka will never accept a message: too large, malformed, or too few replicas. Stop."""


class BadCheckpoint(StreamError):
    """The metadata of a committed offset is of another joiner or another spec. Stop."""


class DamagedMessage(StreamError):
    """A message cannot be decoded. Stop, unless an operator said to skip it."""

    def __init__(self, place: str, why: Exception) -> None:
        """place: TOPIC/PARTITION@OFFSET."""
        super().__init__(
            f"{place}: {why}. Its disk or its producer damaged the message. To skip it, start this "
            f"process once with `--skip-damaged {place}`"
        )


class ExamplesMissing(StreamError):
    """A reader was not given all examples of a partition. Stop, unless an operator accepts it."""

    def __init__(self, place: str, missing: int) -> None:
        """place: TOPIC/PARTITION@OFFSET of the batch behind them."""
        super().__init__(
            f"{place}: expected the batch that follows the last one, got one with {missing} "
            "examples missing before it. Start the learner again: it reads from its last push on. "
            "If they are missing again, Kafka has lost them. To learn the others, start the "
            "learner once with `--accept-gap`"
        )


class BackfillRefused(StreamError):
    """A log to replay is older than the events of its topics. Stop."""


class KafkaRefused(StreamError):
    """Kafka or its client refused a request for another reason. Stop."""
