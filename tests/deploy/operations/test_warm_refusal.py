"""A warm start waits for the joiner of the new model, so that no example is learned twice."""

import pytest

from headrace.deploy.cli.pserver.pserver_restore import check_joined
from headrace.learner.errors import RecoveryRefused

MOMENT_MS = 1_795_000_000_000


def test_a_warm_start_is_refused_while_the_joiner_is_behind() -> None:
    with pytest.raises(RecoveryRefused, match=r"demo2: .*partitions 0, 1.*972,030 events behind"):
        check_joined("demo2", "0, 1", MOMENT_MS, 972_030)


def test_a_warm_start_goes_on_when_everything_is_joined() -> None:
    check_joined("demo2", "0, 1", MOMENT_MS, 0)
