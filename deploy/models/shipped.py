"""Finds the model specs that come with headrace."""

from __future__ import annotations

from pathlib import Path

from headrace.deploy.errors import DeployError


def path_of(name: str) -> Path:
    """Return the file of a shipped spec. Raises DeployError, which names all of them."""
    directory = Path(__file__).parent
    path = directory / f"{name}.toml"
    if not path.is_file():
        names = ", ".join(sorted(path.stem for path in directory.glob("*.toml")))
        raise DeployError(f"expected one of the models {names}, got {name!r}")
    return path
