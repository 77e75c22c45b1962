"""The shared folder: it exists as long as its server, or until the next server starts."""

import multiprocessing
import os
import signal
import time
from contextlib import closing
from multiprocessing.connection import Connection
from pathlib import Path

from headrace.serving.workers.shared_memory import remove_left, shared_folder


def _hold(place: Path, channel: Connection) -> None:
    with shared_folder(place) as folder:
        (folder / "rows").write_bytes(b"some")
        channel.send(folder)
        channel.recv()


def test_a_shared_folder_is_removed_at_the_end_and_other_folders_stay(tmp_path: Path) -> None:
    with shared_folder(tmp_path) as one:
        with shared_folder(tmp_path) as other:
            assert one.is_dir() and other.is_dir()
        assert one.is_dir() and not other.exists()
    assert not list(tmp_path.iterdir())


def test_the_folder_of_a_killed_server_is_removed_by_the_next_server(tmp_path: Path) -> None:
    ours, theirs = multiprocessing.Pipe()
    holder = multiprocessing.get_context("spawn").Process(target=_hold, args=(tmp_path, theirs))
    holder.start()
    with closing(ours), closing(theirs):
        left: Path = ours.recv()
        with shared_folder(tmp_path):
            assert (left / "rows").exists()  # its server lives
        assert holder.pid is not None
        os.kill(holder.pid, signal.SIGKILL)
        holder.join(60)
    assert (left / "rows").exists()
    with shared_folder(tmp_path) as folder:
        assert list(tmp_path.iterdir()) == [folder]


def test_a_shared_folder_under_creation_is_kept_for_a_minute(tmp_path: Path) -> None:
    young = tmp_path / "headrace-serving-young"
    young.mkdir()
    remove_left(tmp_path)
    assert young.exists()
    before_s = time.time() - 100
    os.utime(young, (before_s, before_s))
    remove_left(tmp_path)
    assert not young.exists()
