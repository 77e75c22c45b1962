"""Runs Go's command, which compiles programs of other projects for tests."""

import os
import subprocess
from pathlib import Path


def run_go(folder: Path, *arguments: str, **variables: str) -> str:
    """Run `go` in this folder; return its output. variables: further ones of the environment.

    Raises RuntimeError if it fails.
    """
    done = subprocess.run(
        ["go", *arguments],
        cwd=folder,
        env={**os.environ, **variables},
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(f"expected `go {arguments[0]}` to succeed, got:\n{done.stderr[-2000:]}")
    return done.stdout
