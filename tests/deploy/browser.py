"""Headless Chromium, for looking at a page as its reader does."""

import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

Test = TypeVar("Test", bound="Callable[..., Any]")
_NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next((found for name in _NAMES if (found := shutil.which(name))), None)


def needs_chromium(test: Test) -> Test:
    """Skip a test where Chromium is missing, and in `make quick`, because it starts a process."""
    skipped = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is missing")
    marked: Test = pytest.mark.thorough(skipped(test))
    return marked


# the page's clock runs ahead of ours, but waits for answers: enough for it to ask three times
_LOOKS_MS = 7_000
_TRIES = 4
"""A headless Chromium now and then ends well without having written its picture."""


def _run(url: str, *words: str) -> str:
    assert CHROMIUM is not None
    # a profile of its own: with one that is in use it hands the address over and ends, well content
    with tempfile.TemporaryDirectory(
        prefix="headrace-browser-", ignore_cleanup_errors=True
    ) as profile:
        said = subprocess.run(
            [
                *(CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
                *(f"--user-data-dir={profile}", "--no-first-run", "--disable-dev-shm-usage"),
                *(f"--virtual-time-budget={_LOOKS_MS}", *words, url),
            ],
            capture_output=True,
            text=True,
            timeout=90,
            check=True,
        )
    return said.stdout


def document(url: str) -> str:
    """The page's document after its scripts have asked for figures."""
    return _run(url, "--window-size=1400,1700", "--dump-dom")


def text_of(dom: str, identity: str) -> str:
    """Return the text of the element with this id, without tags."""
    found = re.search(rf'id="{identity}"[^>]*>(.*?)</(?:b|small|span)>', dom, re.DOTALL)
    assert found is not None, f"no element {identity!r}"
    return re.sub(r"<[^>]+>", "", found.group(1)).strip()


def screenshot(url: str, path: Path, width: int, height: int, *, dark: bool = False) -> bytes:
    """A picture of the page, kept at `path`; a PNG."""
    scheme = ("--blink-settings=preferredColorScheme=0",) if dark else ()
    for _ in range(_TRIES):
        _run(url, f"--window-size={width},{height}", f"--screenshot={path}", *scheme)
        if path.is_file():
            return path.read_bytes()
    pytest.fail(f"Chromium wrote no picture of {url} in {_TRIES} tries")
