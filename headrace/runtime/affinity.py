"""The number of processor cores that this process may use."""

import os


def available_cores() -> int:
    """Return the cores of this process's affinity; all of the machine where it has none (macOS)."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
