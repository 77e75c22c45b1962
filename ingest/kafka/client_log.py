"""The log of librdkafka, the Kafka client: its lines, at levels that fit a process that survives.

The client calls a lost connection critical, although it connects again by itself. Its lines are
therefore warnings at most.

A producer asks for its id until Kafka gives one: the coordinator of a new Kafka loads first, or
moves. Such a line says that the client tries again, and tells an operator nothing. If the time for
it runs out, the error of the call has the reason. These lines are therefore for debugging.
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
