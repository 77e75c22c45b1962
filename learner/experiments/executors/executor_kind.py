"""The executors of arm tasks, by name. The command line imports this module alone."""

from enum import StrEnum


class ExecutorKind(StrEnum):
    """Names of the executors."""

    SERIAL = "serial"
    """In the runner, all on the same decoded blocks."""
    PROCESSES = "processes"
    SPARK = "spark"
