"""Renders the picture of the page in README: a demo that drifts and has recovered.

    python -m tests.docs.page_picture [--seconds 180] [--to docs/images/page.png]

It runs `headrace demo` and opens the page in headless Chromium before the end. Then it prints the
output of the demo and the answer to the request that the demo suggests. It needs Chromium.
"""

import argparse
import re
import shlex
import subprocess
import sys
from pathlib import Path

from headrace.deploy.local.services.waiting import wait_until
from tests.deploy.browser import CHROMIUM, screenshot
from tests.deploy.command import running

ROOT = Path(__file__).parents[2]
PICTURE = ROOT / "docs" / "images" / "page.png"
WIDTH_PX, HEIGHT_PX = 1200, 812
"""The tiles and two rows of charts."""
SHOT_AT = 0.9
"""Share of the demo that has passed: drift comes at half time, recovery takes seconds."""
LARGEST_BYTES = 300_000
LINE = re.compile(r"^ *(\d+) s  ", re.MULTILINE)
"""A line of the demo without a terminal: it begins with the seconds since the start."""


def render(seconds: float, path: Path) -> str:
    """Write the picture; return what the demo printed, and the answer of its server."""
    with running("demo", "--seconds", str(seconds), "--port", "0") as demo:
        address = demo.wait_for(r"watch it learn: (\S+)").group(1)
        request = demo.wait_for(r"(curl -s .*)\n").group(1)

        def shown_long_enough() -> bool:
            assert demo.process.poll() is None, demo.output
            return max(map(int, LINE.findall(demo.output)), default=0) >= SHOT_AT * seconds

        assert wait_until(shown_long_enough, 2 * seconds), demo.output
        screenshot(address, path, WIDTH_PX, HEIGHT_PX)
        answer = subprocess.run(shlex.split(request), capture_output=True, text=True, check=True)
        assert demo.end() == 0, demo.output
        return f"{demo.output}\n{answer.stdout}"


def main() -> None:
    """Render the picture of README."""
    parser = argparse.ArgumentParser(description="Renders the picture of the page in README.")
    parser.add_argument("--seconds", type=float, default=180.0, help="Length of the demo.")
    parser.add_argument("--to", type=Path, default=PICTURE, help="PNG to write.")
    words = parser.parse_args()
    if CHROMIUM is None:
        sys.exit("expected chromium, chromium-browser or google-chrome on PATH, found none")
    print(render(words.seconds, words.to))
    size_bytes = words.to.stat().st_size
    if size_bytes > LARGEST_BYTES:
        sys.exit(f"{words.to}: expected at most {LARGEST_BYTES} bytes, found {size_bytes}")


if __name__ == "__main__":
    main()
