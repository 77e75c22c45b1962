"""Numbers of seeds and of examples: all in `make test`, a few in `make quick`.

Hypothesis takes its default from a profile. These functions are for tests that set a number of
their own, since such a number would overrule the profile.
"""

import os

QUICK = os.environ.get("HEADRACE_TESTS") == "quick"
"""Whether `make quick` runs the tests."""
LONG = os.environ.get("HEADRACE_TESTS") == "long"
"""Whether `make test-long` runs the tests: Hypothesis then draws other examples in each run."""
QUICK_EXAMPLES = 5
QUICK_SEEDS = 1


def examples(count: int) -> int:
    """Examples that Hypothesis searches for a test that otherwise asks for `count`."""
    return min(count, QUICK_EXAMPLES) if QUICK else count


def seeds(count: int) -> range:
    """Seeds from 0 on."""
    return range(min(count, QUICK_SEEDS) if QUICK else count)
