"""Why a server cannot start. What it has to say to those who ask is in `api.refusal`.

Why evaluation stops.
"""

from __future__ import annotations


class ServingError(Exception):
    """A server cannot start; the message names the setting to change."""


class BadAlias(ServingError):
    """An alias cannot be what it was asked to be."""


class BadSnapshot(ServingError):
    """It is not clear which snapshot is to be served, or as what."""


class EvaluationError(ServingError):
    """What is evaluated, or with what, is not as it must be; the message says what to do."""
