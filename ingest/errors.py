"""What can go wrong between a process and Kafka, classed by what to do next.

`KafkaUnreachable` is the only one worth waiting for, and `TransactionAborted` the only one to begin
again from; every other one stops the process, because going on would lose an event, count one
twice, or read the wrong data. Events that cannot be used are not errors but data: they go to the
topic of dead letters.

    StreamError
    ├── KafkaUnreachable      wait, or correct the address
    ├── TransactionAborted    restore from the last commit and go on
    ├── Fenced                another instance took over: stop
    ├── NotAllowed            credentials or access rights: stop
    ├── MissingTopic          make it: stop
    ├── TopicMismatch         a topic is not as the model needs it: stop
    ├── OffsetGone            retention overtook the reader, or the topic was made again: stop
    ├── WriteRefused          a message that Kafka does not take: stop
    ├── BadCheckpoint         a committed offset was not written by this joiner and model: stop
    └── KafkaRefused          anything else Kafka or its client said: stop

Foreign errors become these in one place, `ingest.kafka.error_translation`.
"""


class StreamError(Exception):
    """Any failure of Kafka. The message says what was expected and found, and where."""


class KafkaUnreachable(StreamError):
    """No broker answered in time, at an address that the message names with its setting."""


class TransactionAborted(StreamError):
    """What the transaction held was not written. Restore from the last commit and go on."""


class Fenced(StreamError):
    """Another instance with the same name took over. Stop: it has all that was committed."""


class NotAllowed(StreamError):
    """The broker refused the credentials, or what was asked with them. Stop."""


class MissingTopic(StreamError):
    """A topic that was to be there is not. Stop; `ensure_topics` makes it."""


class TopicMismatch(StreamError):
    """A topic exists with other partitions or settings than the model needs. Stop."""


class OffsetGone(StreamError):
    """The offset to read from is not in the topic any more, or not yet. Stop."""


class WriteRefused(StreamError):
    """Kafka will never take a message that was sent: too large, malformed, or too few copies."""


class BadCheckpoint(StreamError):
    """The metadata of a committed offset is not this joiner's, or of another spec. Stop."""


class KafkaRefused(StreamError):
    """Kafka or its client said no for a reason that none of the others names. Stop."""
