"""Runs the asynchronous tests of the collector with asyncio."""

import pytest


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
