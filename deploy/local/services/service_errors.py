"""What can go wrong between asking for the one-machine stack and having it.

All of these are met at start, by a person at a terminal: each message says what was expected, what
was found, where, and what to do next. None is worth a retry by the program itself.
"""


class StackError(RuntimeError):
    """A part of the one-machine stack cannot be had; the message says why and what to do."""


class JarsUnavailable(StackError):
    """The jars of Kafka are neither here nor to be fetched."""


class DidNotStart(StackError):
    """A foreign process died, or was not ready by its deadline; carries the tail of its log."""
