"""A Kafka call that hangs ends its process, and SIGTERM is obeyed meanwhile."""

import signal
import subprocess
import sys
import threading

import pytest

from headrace.ingest.kafka import watchdog
from headrace.ingest.kafka.watchdog import Watchdog

HANGING = """
import ctypes, threading
from headrace.runtime.termination import stopped_by_signals, stopped_while_calls_hang
from headrace.ingest.kafka import watchdog

watchdog.STOP_GRACE_S = 0.3
with stopped_by_signals() as stop, stopped_while_calls_hang(stop):
    with watchdog.Watchdog(stop).guard("a transaction", {limit_s}):
        print("hanging", flush=True)
        libc, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)
        libc.pthread_mutex_lock(mutex)
        libc.pthread_mutex_lock(mutex)  # never returns, and no signal interrupts it
"""


linux = pytest.mark.skipif(sys.platform != "linux", reason="a mutex of zeros is one of Linux")


def hanging(limit_s: float) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", HANGING.format(limit_s=limit_s)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "hanging\n"
    return process


@linux
def test_a_call_that_hangs_ends_the_process_with_status_75_and_a_traceback() -> None:
    process = hanging(limit_s=2.0)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 75
    assert "a transaction hangs" in errors
    assert "Thread" in errors


@linux
def test_sigterm_ends_a_process_that_hangs_in_a_call() -> None:
    process = hanging(limit_s=1_000.0)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 75
    assert "a transaction hangs" in errors


def test_calls_that_return_in_time_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "_LOOK_S", 0.001)
    expired: list[str] = []
    hung = threading.Event()

    def expire(doing: str) -> None:
        expired.append(doing)
        hung.set()

    watching = Watchdog(threading.Event(), expire)
    for _ in range(200):
        with watching.guard("a call", 60.0):
            pass
    with watching.guard("another", 0.01):
        assert hung.wait(60.0)
    assert expired == ["another"]
