"""Errors that end a server, a scorer or an evaluation.

Errors of a single request are `RequestRefused` (`runtime.http`, `requests.refusals`).
"""


class ServingError(Exception):
    """A server cannot start; the message names the setting to change."""


class BadAlias(ServingError):
    """An alias cannot point at the requested model."""
