"""A file of machine code is read whole and under its own digest, or not at all."""

from pathlib import Path

import pytest

from headrace.runtime.kernels.kernel_files import read, write

STAMP, OTHER = b"s" * 32, b"o" * 32


def test_machine_code_is_read_back_under_its_digest_only(tmp_path: Path) -> None:
    path = tmp_path / "kernel.nbc"
    assert read(path, STAMP) is None
    write(path, STAMP, b"first")
    assert read(path, STAMP) == b"first"
    assert read(path, OTHER) is None
    write(path, OTHER, b"second")
    assert read(path, OTHER) == b"second"
    assert read(path, STAMP) is None


def test_a_file_that_lost_its_end_or_a_bit_counts_as_missing(tmp_path: Path) -> None:
    path = tmp_path / "kernel.nbc"
    write(path, STAMP, b"machine code")
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        assert read(path, STAMP) is None
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        assert read(path, STAMP) is None


def test_a_folder_in_place_of_the_file_counts_as_missing(tmp_path: Path) -> None:
    (tmp_path / "kernel.nbc").mkdir()
    assert read(tmp_path / "kernel.nbc", STAMP) is None


def test_the_next_writer_removes_what_a_killed_one_left(tmp_path: Path) -> None:
    path, left, of_another = (
        tmp_path / name for name in ("kernel.nbc", "kernel.nbc.tmp.1", "other.nbc.tmp.1")
    )
    left.write_bytes(b"half")
    of_another.write_bytes(b"half")
    write(path, STAMP, b"machine code")
    assert sorted(tmp_path.iterdir()) == [path, of_another]


def test_a_writer_without_its_unfinished_file_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "kernel.nbc"
    write(path, STAMP, b"first")
    monkeypatch.setattr("pathlib.Path.write_bytes", lambda *_: None)  # another writer removed it
    with pytest.raises(FileNotFoundError):
        write(path, OTHER, b"second")
    assert read(path, STAMP) == b"first"
