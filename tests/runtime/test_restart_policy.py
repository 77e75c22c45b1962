"""Tests the restart policy: pauses grow with quick failures, and a long life clears the count."""

from headrace.runtime.restart_policy import RestartHistory, RestartPolicy

POLICY = RestartPolicy(first_pause_s=0.1, longest_pause_s=0.5, quick_s=10.0, quick_failures=5)


def test_the_pause_doubles_with_each_quick_failure_until_the_restarts_are_exhausted() -> None:
    history = RestartHistory(POLICY)
    found = []
    for _ in range(5):
        history.died(lived_s=1.0)
        found.append((history.pause_s, history.exhausted))
    assert found == [(0.1, False), (0.2, False), (0.4, False), (0.5, False), (0.5, True)]


def test_a_long_life_clears_the_count_of_quick_failures() -> None:
    history = RestartHistory(POLICY)
    for lived_s in (1.0, 1.0, 1.0, 1.0, 10.0):
        history.died(lived_s)
    assert history.quick_failures == 0
    assert history.pause_s == POLICY.first_pause_s
    assert not history.exhausted


def test_outages_make_pauses_longer_and_exhaust_nothing_however_many_there_are() -> None:
    history = RestartHistory(POLICY)
    for _ in range(2000):
        history.died(1.0, outage=True)
        assert history.pause_s <= POLICY.longest_pause_s
    history.died(1.0)
    assert history.pause_s == POLICY.longest_pause_s
    assert not history.exhausted
