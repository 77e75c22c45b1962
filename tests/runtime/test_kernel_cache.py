"""Kernels compile where nothing can be written, and load the machine code of an image there."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

READ_ONLY = """
import os, sys

WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT

def refuse(event, arguments):
    if event == "os.mkdir" or (event == "open" and (arguments[2] or 0) & WRITES):
        if str(arguments[0]) not in ("/dev/null",):
            raise OSError(30, "Read-only file system", str(arguments[0]))

sys.addaudithook(refuse)
"""
"""An audit hook that makes every file system of the process read-only, for root too."""

KERNEL = """
import numba.core.event as events
from headrace.runtime.kernels.kernel_cache import compiled_and_kept

@compiled_and_kept(nogil=True)
def doubled(x):
    return 2 * x

class Compilations(events.Listener):
    count = 0
    def on_start(self, event):
        pass
    def on_end(self, event):
        self.count += 1

seen = Compilations()
with events.install_listener("numba:compile", seen):
    assert doubled(21) == 42
print("compiled" if seen.count else "loaded")
"""


def run(code: str, folder: Path, *, read_only: bool) -> str:
    """Run a module in a process without a home and return its output."""
    (folder / "kernels.py").write_text(textwrap.dedent(KERNEL))
    child = subprocess.run(
        [sys.executable, "-B", "-c", (READ_ONLY if read_only else "") + code],
        cwd=folder,
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": f"{folder}{os.pathsep}{Path.cwd()}",
            "HOME": "/nonexistent",
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert child.returncode == 0, child.stderr
    return child.stdout.strip()


@pytest.mark.thorough
def test_a_kernel_compiles_in_memory_where_nothing_can_be_written(tmp_path: Path) -> None:
    assert run("import kernels", tmp_path, read_only=True) == "compiled"
    assert not (tmp_path / "__pycache__").exists()


@pytest.mark.thorough
def test_a_read_only_image_loads_the_machine_code_that_it_contains(tmp_path: Path) -> None:
    assert run("import kernels", tmp_path, read_only=False) == "compiled"
    assert run("import kernels", tmp_path, read_only=True) == "loaded"


def test_a_full_disk_does_not_end_a_process_that_compiles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from headrace.runtime.kernels.kernel_cache import _KernelCache, compiled_and_kept

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(_KernelCache, "_save_overload", full)

    @compiled_and_kept(nogil=True)
    def tripled(x: int) -> int:
        return 3 * x

    assert tripled(14) == 42
