"""Finds the model specs that come with headrace."""

from pathlib import Path

from headrace.deploy.errors import DeployError


def path_of(name: str) -> Path:
    """Return the file of a shipped spec. Raises DeployError, which names all of them."""
    path = Path(__file__).with_name(f"{name}.toml")
    if not path.is_file():
        names = ", ".join(each.stem for each in shipped_specs())
        raise DeployError(f"expected one of the models {names}, got {name!r}")
    return path


def shipped_specs() -> list[Path]:
    """Return the files of all shipped specs."""
    return sorted(Path(__file__).parent.glob("*.toml"))
