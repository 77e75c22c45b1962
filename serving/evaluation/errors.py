"""Why evaluation stops."""

from __future__ import annotations

from serving.errors import ServingError


class EvaluationError(ServingError):
    """What is evaluated, or with what, is not as it must be; the message says what to do."""
