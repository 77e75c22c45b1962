"""Tests the escapes of text from topics and clients."""

import pytest

from headrace.deploy.cli.ingest.ingest_dead_letters import _described
from headrace.deploy.operations.live_status import figures_of, status_text
from headrace.ingest.dead_letters.letter import Letter, pack, unpack
from headrace.ingest.kafka.protocols import Record, Source
from headrace.ingest.status import MetricSample, ProcessStatus
from headrace.runtime.printable_text import printable

HOSTILE = "\x1b]0;title\x07\x1b[2J\x9b31m\u202egnp.exe\u2066\r\n\x7f\ud800"


def test_no_control_character_and_no_mark_of_direction_reaches_a_terminal() -> None:
    shown = printable(HOSTILE)
    assert shown.isprintable()
    assert shown.startswith("\\x1b]0;title\\x07\\x1b[2J\\x9b31m\\u202egnp.exe\\u2066\\r\\n")


@pytest.mark.parametrize("text", ["", "plain text", "Ærøskøbing 東京", "a - b"])
def test_text_that_prints_is_shown_as_it_is(text: str) -> None:
    assert printable(text) == text


@pytest.mark.parametrize("value", [HOSTILE[:-1].encode(), b"\x9b31m", b'{"a":"\\u001b[31m"}'])
def test_a_dead_letter_is_shown_without_the_control_characters_of_its_event(value: bytes) -> None:
    record = Record(Source("impressions", 0), 5, 7, value, b"\x1b[31mkey")
    letter = unpack(pack(record, "expected \x1b[2J"))
    assert isinstance(letter, Letter)
    assert all(line.isprintable() for line in _described(letter).split("\n"))


def test_the_status_shows_names_without_control_characters() -> None:
    name = HOSTILE[:-1]
    sample = MetricSample("headrace_joiner_dead_letters_total", {"reason": name}, 1.0)
    status = ProcessStatus(name, name, 1, [sample])
    lines = status_text(figures_of([status], 1)).split("\n")
    assert all(line.isprintable() for line in lines)
    assert any("\\x1b]0" in line for line in lines)
