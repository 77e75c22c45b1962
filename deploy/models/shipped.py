"""Finds the model specs that come with headrace."""

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


def specs_without_torch() -> list[Path]:
    """Return the files of the shipped specs that need no optional dependency."""
    from headrace.learner.spec.model_spec import load_spec

    specs = sorted(Path(__file__).parent.glob("*.toml"))
    return [path for path in specs if load_spec(path).optimizers.dense is None]
