"""Errors of starting Kafka and Valkey on this machine.

All of them occur at start, in front of a user. Each message names the expected and the actual
state, the place, and the next step. The program retries none of them.
"""


class StackError(RuntimeError):
    """A local service is not available. The message has the reason and the next step."""


class JarsUnavailable(StackError):
    """The jars of Kafka are not on this machine and cannot be fetched."""


class DidNotStart(StackError):
    """A server died or was not ready by its deadline. Carries the end of its log."""
