"""TODO."""

from __future__ import annotations

from pathlib import Path

from headrace.deploy.errors import DeployError


def path_of(name: str) -> Path:
    """Return the file of a spec that comes along. Raises DeployError naming those there are."""
    directory = Path(__file__).parent
    path = directory / f"{name}.toml"
    if not path.is_file():
        there = ", ".join(sorted(each.stem for each in directory.glob("*.toml")))
        raise DeployError(f"expected one of the models {there}, found {name!r}")
    return path
