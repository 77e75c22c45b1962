"""Work for managed processes in tests. It imports little, so that processes start fast."""

import logging
import os
import signal
import time
from multiprocessing.connection import Connection

import psutil

from headrace.pserver.errors import MissingBucket
from headrace.runtime.http.http_errors import AddressTaken
from headrace.serving.workers.process_pool import ManagedProcess, WorkerContext


def work(duty: WorkerContext) -> None:
    duty.ready()
    duty.stop.wait(60)


def report(duty: WorkerContext) -> None:
    logging.getLogger("answers").warning("the model is old")
    work(duty)


def work_on(duty: WorkerContext) -> None:
    """Not to be stopped."""
    duty.ready()
    while True:
        signal.pause()


def die(duty: WorkerContext) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def error_of(which: str) -> Exception:
    """Made where it is raised: not every error can travel."""
    if which == "MissingBucket":
        return MissingBucket("bucket 1 is empty")
    return AddressTaken("127.0.0.1", 80, "--metrics-port", "in use")


def refuse(which: str, duty: WorkerContext) -> None:
    raise error_of(which)


def looked(member: ManagedProcess) -> ManagedProcess:
    """The member, after one look: a condition to wait for may ask it."""
    member.supervise()
    return member


def be_parent(channel: Connection) -> None:
    member = ManagedProcess("one", work)
    deadline_s = time.monotonic() + 60
    while not looked(member).was_ready:
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    channel.send([each.pid for each in psutil.Process().children()])
    channel.recv()
