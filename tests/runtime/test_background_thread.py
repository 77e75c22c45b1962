"""A background thread ends with `stop`, also if it never began."""

import threading

from headrace.runtime.background_thread import BackgroundThread


class _Waiting(BackgroundThread):
    """Waits for its end."""

    def __init__(self) -> None:
        super().__init__(self._run, "waiting")
        self.began, self.done = threading.Event(), False

    def _run(self) -> None:
        self.began.set()
        self._ended.wait()
        self.done = True


def test_stop_ends_the_thread_and_waits_for_it() -> None:
    waiting = _Waiting()
    waiting.start()
    assert waiting.began.wait(60.0)
    waiting.stop()
    assert waiting.done


def test_a_thread_that_was_never_started_can_be_stopped() -> None:
    waiting = _Waiting()
    waiting.stop()
    assert not waiting.done


def test_stop_leaves_a_thread_behind_that_does_not_end_in_time() -> None:
    released, gone = threading.Event(), threading.Event()

    def run() -> None:
        released.wait(60.0)
        gone.set()

    stuck = BackgroundThread(run, "stuck", 0.01)
    stuck.start()
    stuck.stop()
    assert not gone.is_set()
    released.set()
