"""Notes when the Kafka client loses a connection.

A client that loses a connection sends the requests in flight there again, on another one. The first
copy may still be in the buffers of a broker that is slow or frozen. Kafka gives requests about
transactions no sequence numbers, and the protocol that librdkafka 2.16 speaks does not raise the
epoch of a producer with each transaction (KIP-890). So such a copy may take effect in a later
transaction of the same producer: a late `EndTxn` commits it before all of its messages are there,
and a late `TxnOffsetCommit` commits old offsets with it.

The client has no call that tells. But it writes a line of the facility FAIL before it sends
anything again: at the level DEBUG each time, at other levels unless it wrote the same line lately.
A canary test (`test_late_requests`) cuts a connection behind each kind of request.
"""

import logging

from headrace.ingest.kafka.client_log import client_log

_NEVER_UP = ("INIT", "DOWN", "TRY_CONNECT", "CONNECT", "SSL_HANDSHAKE", "AUTH_LEGACY")
"""States of a connection in which no request about a transaction was sent. Nearest in the line."""


class ConnectionLog:
    """The `logger` of one client, which also writes the lines that any client writes."""

    def __init__(self) -> None:
        self.lost = False
        """Whether a connection was lost that may have had requests in flight."""

    def log(self, level: int, template: str, facility: str, *words: str) -> None:
        """Take a line of the client. It calls this as it calls `logging.Logger.log`."""
        text = words[-1]
        if facility == "FAIL" and not any(f" in state {state}" in text for state in _NEVER_UP):
            self.lost = True
        if level > logging.DEBUG:
            client_log.log(level, template, facility, *words)


LOGGED: dict[str, object] = {"debug": "broker"}
"""Settings with which a client writes each of these lines."""
