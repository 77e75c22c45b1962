"""The log of librdkafka, the Kafka client: its lines, at levels that fit a process that survives.

The client calls a lost connection critical, although it connects again by itself. Its lines are
therefore warnings at most.

A producer asks for its id until Kafka gives one: the coordinator of a new Kafka loads first, or
moves. Such a line says that the client tries again, and tells an operator nothing. If the time for
it runs out, the error of the call has the reason. These lines are therefore for debugging.

**A lost connection.** A client that loses a connection sends the requests in flight there again, on
another one. The first copy may still be in the buffers of a broker that is slow or frozen. Kafka
gives requests about transactions no sequence numbers, and the protocol that librdkafka 2.16 speaks
does not raise the epoch of a producer with each transaction (KIP-890). So such a copy may take
effect in a later transaction of the same producer: a late `EndTxn` commits it before all of its
messages are there, and a late `TxnOffsetCommit` commits old offsets with it.

The client has no call that tells. But it writes a line of the facility FAIL before it sends
anything again: at the level DEBUG each time, at other levels unless it wrote the same line lately.
A canary test (`test_late_requests`) cuts a connection behind each kind of request.
"""

import logging
import re

client_log = logging.getLogger(__name__)
"""Receives the client's lines, and what its error callbacks report."""

_ASKS_AGAIN = re.compile(r"GETPID .*: retrying$", re.DOTALL)
"""The client's own name for requests of a producer id begins the line."""


def _fits(line: logging.LogRecord) -> bool:
    """Lower the level of a line to what it means; return whether it is still to be written."""
    if line.levelno > logging.WARNING:
        line.levelno, line.levelname = logging.WARNING, "WARNING"
    if _ASKS_AGAIN.match(line.getMessage()):
        line.levelno, line.levelname = logging.DEBUG, "DEBUG"
    return client_log.isEnabledFor(line.levelno)


client_log.addFilter(_fits)


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
