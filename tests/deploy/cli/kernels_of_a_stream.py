"""Prints the kernels that joiner and learner compile or load after the warm-up, one a line.

A process of its own: `python -m tests.deploy.cli.kernels_of_a_stream SPEC`. In a process of other
tests, these may have loaded kernels that the warm-up lacks.
"""

import gc
import sys

from numba.core.dispatcher import Dispatcher

from headrace.deploy.local.kernel_warmup import WarmupStream, warm
from headrace.deploy.models.shipped import path_of
from headrace.learner.spec.model_spec import load_spec

LONGER = WarmupStream(partitions=3, requests=1500, values=500, gap_ms=200, steps=200)


def main() -> None:
    """Warm up, join and learn a longer stream, and print what was not loaded before."""
    spec = load_spec(path_of(sys.argv[1]))
    few = warm(spec)
    before = _kernels()
    assert warm(spec, LONGER) > 10 * few
    for kernel in sorted(_kernels() - before):
        print(kernel)


def _kernels() -> set[str]:
    dispatchers = [each for each in gc.get_objects() if isinstance(each, Dispatcher)]
    ours = [each for each in dispatchers if each.py_func.__module__.startswith("headrace")]
    return {
        f"{each.py_func.__module__}.{each.py_func.__name__} {signature}"
        for each in ours
        for signature in each.signatures
    }


if __name__ == "__main__":
    main()
