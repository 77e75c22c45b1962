"""Installed as a wheel, a source distribution or in editable mode, headrace runs in any folder."""

import os
import subprocess
import sys
import tomllib
import venv
import zipfile
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
UV = Path(sys.executable).with_name("uv")
FOLDERS = ("deploy", "ingest", "learner", "pserver", "serving")
"""Packages of a user with the names of this repository's folders."""

_PICKLES = """\
import multiprocessing
from concurrent.futures import ProcessPoolExecutor

from headrace.deploy.local.pipeline import PipelineSettings
from headrace.pserver.store import Shape


def width(shape):
    return shape.width, type(shape).__module__


if __name__ == "__main__":
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        print(*pool.submit(width, Shape("m", 2, 7, "f", "")).result())
"""


class Distributions(NamedTuple):
    """The built files."""

    wheel: Path
    sdist: Path


def _run(*command: str | Path, cwd: Path, timeout_s: float = 400.0) -> str:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL"))}
    result = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert result.returncode == 0, f"{command}:\n{result.stdout}\n{result.stderr}"
    return result.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Distributions:
    """The wheel, built by way of the source distribution: leftovers in the tree cannot slip in."""
    directory = tmp_path_factory.mktemp("dist")
    _run(UV, "build", "--out-dir", directory, ROOT, cwd=directory)
    [wheel] = directory.glob("*.whl")
    [sdist] = directory.glob("*.tar.gz")
    return Distributions(wheel, sdist)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder of a user whose packages have the names of headrace's folders."""
    folder = tmp_path / "project"
    for name in FOLDERS:
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text(f"raise SystemExit('the own {name}')\n")
    (folder / "headrace.toml").write_text("this is = not TOML of headrace\n")
    (folder / "pickles.py").write_text(_PICKLES)
    return folder


def _installed(tmp_path: Path, *package: str | Path) -> Path:
    """Install a package into an empty environment; return the folder of its programs."""
    venv.create(tmp_path / "environment", with_pip=False)
    programs = tmp_path / "environment" / "bin"
    lock = ROOT / "requirements.lock"
    install = (UV, "pip", "install", "--python", programs / "python", "-c", lock)
    _run(*install, *package, cwd=tmp_path)
    return programs


def _files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def test_the_wheel_has_one_package_with_all_its_data(built: Distributions) -> None:
    assert built.wheel.name == f"headrace-{VERSION}-py3-none-any.whl"
    assert built.sdist.name == f"headrace-{VERSION}.tar.gz"
    names = zipfile.ZipFile(built.wheel).namelist()
    assert {name.partition("/")[0] for name in names} == {
        "headrace",
        f"headrace-{VERSION}.dist-info",
    }
    assert "headrace/pserver/redis_backend/functions.lua" in names
    assert "headrace/deploy/local/services/kafka_jars.lock" in names
    assert "headrace/deploy/models/demo.toml" in names
    assert "headrace/py.typed" in names
    data = {
        f"headrace/{path.relative_to(ROOT)}"
        for folder in FOLDERS
        for kind in ("toml", "lua", "html", "lock")
        for path in (ROOT / folder).rglob(f"*.{kind}")
        if (path.parent / "__init__.py").is_file() or "models" in path.parts
    }
    data = {each for each in data if not each.startswith("headrace/deploy/image/")}
    assert len(data) > 10
    assert data <= set(names)


@pytest.mark.long
def test_the_installed_demo_runs_in_a_folder_with_packages_of_the_same_names(
    built: Distributions, tmp_path: Path, project: Path
) -> None:
    programs = _installed(tmp_path, built.wheel)
    before = _files(project)
    output = _run(programs / "headrace", "demo", "--seconds", "15", "--port", "0", cwd=project)
    assert "AUC" in output
    assert "Exactly once" in output
    assert _files(project) == before


@pytest.mark.parametrize(
    "kind",
    [
        "wheel",
        # the wheel is built from it
        pytest.param("sdist", marks=pytest.mark.long),
        # as in the environment of all other tests
        pytest.param("editable", marks=pytest.mark.long),
    ],
)
def test_an_installed_headrace_is_imported_and_pickled_beside_packages_of_the_same_names(
    built: Distributions, tmp_path: Path, project: Path, kind: str
) -> None:
    packages: dict[str, tuple[str | Path, ...]] = {
        "wheel": (built.wheel,),
        "sdist": (built.sdist,),
        "editable": ("-e", ROOT),
    }
    programs = _installed(tmp_path, *packages[kind])
    assert _run(programs / "headrace", "--version", cwd=project).startswith("headrace ")
    command = (programs / "python", "-P", "-m", "headrace", "spec", "--event-schema", "click")
    assert '"impression_id"' in _run(*command, cwd=project)
    assert _run(programs / "python", "pickles.py", cwd=project) == "7 headrace.pserver.store\n"
