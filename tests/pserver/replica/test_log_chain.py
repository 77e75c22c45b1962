"""Entries continue what was read before, or the history is broken."""

import pytest

from headrace.pserver.replica.log_chain import BrokenHistory, chain, log_of
from headrace.pserver.store import Entry, PollResult

NONCES = [bytes([version]) * 8 for version in range(6)]


def entry(version: int, previous: bytes | None = None) -> Entry:
    return Entry(version, NONCES[version], previous or NONCES[version - 1], b"")


def polled(
    version: int, *entries: Entry, trimmed: int = 0, nonce: bytes | None = None
) -> PollResult:
    return PollResult(0, version, nonce or NONCES[version], trimmed, entries)


@pytest.mark.parametrize("history", [polled(2), polled(4, entry(3), entry(4)), polled(3, entry(3))])
def test_entries_that_follow_a_position_continue_it(history: PollResult) -> None:
    assert chain(2, NONCES[2], history) == history.entries


@pytest.mark.parametrize(
    ("history", "said"),
    [
        (polled(1), "went back to version 1"),
        (polled(2, nonce=NONCES[5]), "went back to version 2"),
        (polled(4, entry(4), trimmed=3), "entries after 2 were trimmed"),
        (polled(2, trimmed=3), "entries after 2 were trimmed"),
        (polled(3), "entries after 2 were trimmed"),
        (polled(4, entry(4)), "entry 4 does not follow entry 2"),
        (polled(3, entry(3, NONCES[5])), "entry 3 does not follow entry 2"),
        (polled(4, entry(3), entry(4, NONCES[5])), "entry 4 does not follow entry 3"),
    ],
)
def test_every_break_of_a_history_is_found(history: PollResult, said: str) -> None:
    with pytest.raises(BrokenHistory, match=said):
        chain(2, NONCES[2], history)


@pytest.mark.parametrize(
    ("history", "complete"),
    [
        (polled(2, trimmed=2), True),
        (polled(2, trimmed=1), False),
        (polled(3, entry(2), entry(3), trimmed=1), True),
        (polled(3, entry(3), trimmed=1), False),
        (polled(3, entry(2), entry(3, NONCES[5]), trimmed=1), False),
    ],
)
def test_a_log_is_read_from_its_first_entry_or_not_at_all(
    history: PollResult, complete: bool
) -> None:
    if complete:
        assert tuple(log_of(history)) == history.entries
    else:
        with pytest.raises(BrokenHistory):
            log_of(history)
