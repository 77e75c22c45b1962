"""Notes of commands that wait."""

import threading

import pytest

from headrace.deploy.terminal.waiting_note import waiting_for

DEADLINE_S = 60.0


def test_a_command_that_waits_says_for_what_until_it_has_it() -> None:
    said: list[str] = []
    twice = threading.Semaphore(0)

    def say(note: str) -> None:
        said.append(note)
        twice.release()

    with waiting_for("the store", say, first_s=0.001, every_s=0.001):
        assert twice.acquire(timeout=DEADLINE_S) and twice.acquire(timeout=DEADLINE_S)
    noted = len(said)
    assert noted >= 2 and all(each.startswith("waiting for the store, ") for each in said)
    assert not twice.acquire(blocking=False) or len(said) == noted


def test_a_command_that_does_not_wait_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with waiting_for("the store"):
        pass
    assert capsys.readouterr().err == ""
