"""The broker inside of librdkafka, which answers requests with the errors that a test chooses.

It has transactions, groups and committed offsets, and starts in milliseconds. It knows no requests
of admin clients about topics, and a reader of committed records gets aborted ones, too.
"""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path

import confluent_kafka


class Request(Enum):
    """Requests of Kafka's protocol that a coordinator answers."""

    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    INIT_PRODUCER_ID = 22
    ADD_PARTITIONS_TO_TRANSACTION = 24
    ADD_OFFSETS_TO_TRANSACTION = 25
    END_TRANSACTION = 26
    TRANSACTION_OFFSET_COMMIT = 28

    def __str__(self) -> str:
        return self.name.lower()


class MockBroker:
    """One broker. `fail` makes its next answers errors."""

    def __init__(self) -> None:
        [path] = Path(confluent_kafka.__file__).parents[1].glob("confluent_kafka.libs/librdkafka-*")
        self._library = ctypes.CDLL(str(path))
        for name, result, arguments in _FUNCTIONS:
            function = getattr(self._library, name)
            function.restype, function.argtypes = result, arguments
        text = ctypes.create_string_buffer(512)
        self._client = self._library.rd_kafka_new(0, self._library.rd_kafka_conf_new(), text, 512)
        assert self._client, text.value
        self._cluster = self._library.rd_kafka_mock_cluster_new(self._client, 1)
        self.bootstrap = str(
            self._library.rd_kafka_mock_cluster_bootstraps(self._cluster), encoding="ascii"
        )

    def create(self, topic: str, partitions: int) -> None:
        """Create a topic."""
        created = self._library.rd_kafka_mock_topic_create(
            self._cluster, topic.encode(), partitions, 1
        )
        assert created == 0

    def fail(self, request: Request, codes: list[int]) -> None:
        """Answer the next requests of a kind with these errors, one each."""
        array = (ctypes.c_int * len(codes))(*codes)
        self._library.rd_kafka_mock_push_request_errors_array(
            self._cluster, request.value, len(codes), array
        )

    def close(self) -> None:
        """Stop."""
        self._library.rd_kafka_mock_cluster_destroy(self._cluster)
        self._library.rd_kafka_destroy(self._client)


@contextmanager
def mock_broker() -> Iterator[MockBroker]:
    """Run a broker."""
    broker = MockBroker()
    try:
        yield broker
    finally:
        broker.close()


_POINTER, _TEXT, _INT, _SIZE = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_size_t
_FUNCTIONS = (
    ("rd_kafka_conf_new", _POINTER, ()),
    ("rd_kafka_new", _POINTER, (_INT, _POINTER, _TEXT, _SIZE)),
    ("rd_kafka_destroy", None, (_POINTER,)),
    ("rd_kafka_mock_cluster_new", _POINTER, (_POINTER, _INT)),
    ("rd_kafka_mock_cluster_destroy", None, (_POINTER,)),
    ("rd_kafka_mock_cluster_bootstraps", _TEXT, (_POINTER,)),
    ("rd_kafka_mock_topic_create", _INT, (_POINTER, _TEXT, _INT, _INT)),
    (
        "rd_kafka_mock_push_request_errors_array",
        None,
        (_POINTER, ctypes.c_int16, _SIZE, ctypes.POINTER(_INT)),
    ),
)
