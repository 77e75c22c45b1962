"""Runs cases in a forked process: a signal, a hang and a large allocation are results.

The child notes in shared memory which case it runs, so the parent can name a case that killed it.
"""

import base64
import faulthandler
import logging
import mmap
import os
import random
import resource
import signal
import struct
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_MEMORY_BYTES = 1 << 30
"""Memory that a case may take beside what the process has: 250 times the largest message."""
_CASE_S = 5.0
"""Processor time of a case. The slowest sound message takes some milliseconds."""
_CASES_A_PROCESS = 2_000
_COUNTS = struct.Struct("<QQQ")
_PAGE = 1 << 16


@dataclass(frozen=True, slots=True)
class Decoder:
    """One decoder of bytes from outside."""

    name: str
    case: Callable[[random.Random], bytes]
    """Makes the bytes of a case."""
    decode: Callable[[bytes], object]
    """Decodes, and uses the result as the product does."""
    declared: tuple[type[Exception], ...] = ()
    """Errors that the decoder may raise."""
    share: float = 1.0
    """Of the usual cases: slow decoders get fewer."""


@dataclass(slots=True)
class Explored:
    """What became of the cases."""

    accepted: int = 0
    refused: int = 0
    failure: str = ""
    """The first violation of the law, with its case; empty without one."""


class _Hang(BaseException):
    """A case took too long."""


def explore(decoder: Decoder, seed: str, cases: int) -> Explored:
    """Run cases until one violates the law."""
    explored, cases = Explored(), max(1, round(decoder.share * cases))
    for chunk in range(-(-cases // _CASES_A_PROCESS)):
        count = min(_CASES_A_PROCESS, cases - chunk * _CASES_A_PROCESS)
        _explore_chunk(decoder, f"{seed}/{chunk}", count, explored)
        if explored.failure:
            break
    return explored


def _explore_chunk(decoder: Decoder, seed: str, count: int, explored: Explored) -> None:
    shared = mmap.mmap(-1, _PAGE)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            _run(decoder, seed, count, shared)
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    at, accepted, refused = _COUNTS.unpack_from(shared)
    explored.accepted += accepted
    explored.refused += refused
    if status:
        said = shared[_COUNTS.size :].rstrip(b"\0").decode("utf-8", "replace")
        code = os.waitstatus_to_exitcode(status)
        died = f"killed by signal {-code}" if code < 0 else said or f"ended with status {code}"
        dice, blob = random.Random(f"{decoder.name}/{seed}"), b""
        for _ in range(at + 1):
            blob = decoder.case(dice)
        shown = base64.b64encode(blob[:6000]).decode()
        explored.failure = (
            f"{decoder.name}, seed {seed}, case {at}, {len(blob)} bytes: {died}\n{shown}"
        )


def _run(decoder: Decoder, seed: str, count: int, shared: mmap.mmap) -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * mmap.PAGESIZE + _MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    signal.signal(signal.SIGPROF, _interrupt)
    faulthandler.disable()
    logging.disable(logging.CRITICAL)
    dice = random.Random(f"{decoder.name}/{seed}")
    accepted = refused = 0
    for at in range(count):
        blob = decoder.case(dice)
        _COUNTS.pack_into(shared, 0, at, accepted, refused)
        signal.setitimer(signal.ITIMER_PROF, _CASE_S)
        try:
            decoder.decode(blob)
            accepted += 1
        except decoder.declared:
            refused += 1
        except BaseException as error:
            place = "".join(traceback.format_exception(error, limit=-4))
            said = f"{type(error).__name__} is not declared: {place}"[-4000:].encode()
            shared[_COUNTS.size : _COUNTS.size + len(said)] = said
            raise
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0.0)
    _COUNTS.pack_into(shared, 0, count, accepted, refused)


def _interrupt(*_: object) -> None:
    raise _Hang(f"more than {_CASE_S} s of processor time")
