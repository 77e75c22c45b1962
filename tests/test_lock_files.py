"""Checks that every locked package has the hashes of its files, for every platform."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LOCKS = (
    "requirements.lock",
    "requirements-deep.lock",
    "requirements-build.lock",
    "deploy/image/requirements.lock",
    "deploy/image/requirements-sbom.lock",
)


def _packages(lock: str) -> dict[str, list[str]]:
    """Return the hashes of each locked package, by `name==version ; marker`."""
    joined = (ROOT / lock).read_text().replace("\\\n", " ")
    lines = [line for line in joined.splitlines() if line and not line.lstrip().startswith("#")]
    found = {}
    for line in lines:
        requirement, *hashes = re.split(r"\s+--hash=", line.strip())
        found[requirement] = hashes
    return found


@pytest.mark.parametrize("lock", LOCKS)
def test_every_locked_package_has_the_hashes_of_its_files(lock: str) -> None:
    packages = _packages(lock)
    assert packages
    for requirement, hashes in packages.items():
        assert re.match(r"[\w.\[\]-]+==\S+", requirement), requirement
        assert hashes, requirement
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", each) for each in hashes), requirement


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_file_names_no_registry(lock: str) -> None:
    assert "://" not in (ROOT / lock).read_text()


def test_make_installs_from_lock_files_with_hashes_only() -> None:
    recipes = (ROOT / "Makefile").read_text().replace("\\\n", " ").splitlines()
    installs = [line for line in recipes if "pip install" in line]
    assert installs
    for line in installs:
        own = "--no-deps --no-build-isolation -e ." in line
        assert own or ("--require-hashes" in line and "-r requirements" in line), line
