"""Tests the bounds of a body before its events are split."""

import gzip
import tracemalloc

import pytest

from headrace.ingest.collector.backpressure import CollectorLimits
from headrace.ingest.collector.body import unpack_gzip
from headrace.runtime.http.http_errors import RequestRefused

LIMITS = CollectorLimits(body_bytes=1 << 16)


def test_a_small_body_that_unpacks_to_a_large_one_takes_no_memory_for_it() -> None:
    bomb = gzip.compress(bytes(64 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(RequestRefused, match="more, unpacked"):
            unpack_gzip(bomb, LIMITS)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 16 * LIMITS.body_bytes
