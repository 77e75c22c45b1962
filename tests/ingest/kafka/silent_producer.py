"""A Kafka producer and a group in memory that do nothing, for tests of failing transactions."""

from typing import Any

from headrace.ingest.kafka.protocols import Committed, Source


class SilentProducer:
    """A producer of transactions whose calls do nothing."""

    def __init__(self, config: dict[str, object]) -> None:
        self.config = config

    def init_transactions(self, timeout_s: float) -> None: ...

    def poll(self, timeout_s: float) -> None: ...

    def begin_transaction(self) -> None: ...

    def produce(self, *message: object) -> None: ...

    def send_offsets_to_transaction(self, offsets: Any, group: Any, timeout_s: float) -> None: ...

    def close(self) -> None: ...


class NoGroup:
    """A group without committed offsets."""

    def committed(self, sources: object) -> dict[Source, Committed]:
        return {}

    def group_metadata(self) -> object:
        return object()
