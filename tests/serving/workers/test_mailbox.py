"""Mailboxes: a message is read completely or not at all, also when a writer is killed."""

import multiprocessing
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.serving.workers.mailbox import Mailbox, MailboxMessage

SIZE = 64
CONTENT = st.binary(max_size=SIZE)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "board"


@pytest.fixture
def board(file: Path) -> Iterator[Mailbox]:
    with closing(Mailbox(file, SIZE)) as made:
        yield made


def test_a_mailbox_has_the_last_message_for_every_process(board: Mailbox, file: Path) -> None:
    with closing(Mailbox(file, SIZE)) as other:
        assert other.read() is None
        for number, content in enumerate((b"first", b"", b"third " * 8), 1):
            before = other.marks()
            assert board.write(content) == number
            assert other.read() == MailboxMessage(number, content)
            assert other.marks() != before
        assert other.write(b"from the other") == 4
    assert board.read() == MailboxMessage(4, b"from the other")


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(CONTENT, min_size=1, max_size=4), CONTENT, st.data())
def test_a_writer_killed_at_any_byte_leaves_the_previous_message(
    tmp_path: Path, contents: list[bytes], last: bytes, data: st.DataObject
) -> None:
    file = tmp_path / "torn"
    file.unlink(missing_ok=True)
    with closing(Mailbox(file, SIZE)) as board:
        for each in contents:
            board.write(each)
        before = file.read_bytes()
        board.write(last)
        after = file.read_bytes()
        # the content was written first and the head behind it: the head's place begins the slot
        slot = 0 if before[: len(before) // 2] != after[: len(after) // 2] else len(after) // 2
        head = len(after) // 2 - SIZE
        order = [*range(slot + head, slot + head + len(last)), *range(slot, slot + head)]
        cut = data.draw(st.integers(0, len(order)), "bytes written")
        torn = bytearray(before)
        for place in order[:cut]:
            torn[place] = after[place]
        file.write_bytes(torn)
    with closing(Mailbox(file, SIZE)) as board:
        whole = MailboxMessage(len(contents), contents[-1]), MailboxMessage(len(contents) + 1, last)
        found = board.read()
        assert found in whole
        assert found == whole[0] or torn == after
        assert board.write(b"next") == found.number + 1
        assert board.read() == MailboxMessage(found.number + 1, b"next")


def _write(file: Path, count: int) -> None:
    with closing(Mailbox(file, SIZE)) as board:
        for each in range(count):
            board.write(bytes([each % 251]) * (each % SIZE))


def test_a_reader_sees_complete_messages_in_order_while_another_process_writes(
    board: Mailbox, file: Path
) -> None:
    count = 10_000
    writer = multiprocessing.get_context("spawn").Process(target=_write, args=(file, count))
    writer.start()
    seen = 0
    while seen < count:
        assert writer.exitcode in (None, 0)
        message = board.read()
        if message is not None:
            assert message.number >= seen
            seen, each = message.number, message.number - 1
            assert message.content == bytes([each % 251]) * (each % SIZE)
    writer.join(60)
    assert writer.exitcode == 0


def test_writers_that_hold_the_lock_lose_no_message(file: Path) -> None:
    def write() -> None:
        with closing(Mailbox(file, SIZE)) as mine:
            for _ in range(200):
                with mine.lock():
                    mine.write(b"one more")

    writers = [threading.Thread(target=write) for _ in range(4)]
    for each in writers:
        each.start()
    for each in writers:
        each.join(60)
    with closing(Mailbox(file, SIZE)) as board:
        assert board.read() == MailboxMessage(800, b"one more")
