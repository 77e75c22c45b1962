"""The documentation site builds without warnings, and a broken link is a warning."""

import shutil
import subprocess
import sys
from pathlib import Path

from tests.docs.pages import DOCS


def build(directory: Path, broken: str = "") -> subprocess.CompletedProcess[str]:
    """Build a copy of the site; `broken` is appended to its first page."""
    shutil.copytree(DOCS, directory / "docs")
    shutil.copy(DOCS.parent / "mkdocs.yml", directory)
    with (directory / "docs/index.md").open("a") as page:
        page.write(broken)
    return subprocess.run(
        [Path(sys.executable).with_name("zensical"), "build", "--clean", "--strict"],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_the_site_builds_with_warnings_as_errors_and_loads_nothing_from_elsewhere(
    tmp_path: Path,
) -> None:
    built = build(tmp_path)
    assert built.returncode == 0, built.stdout + built.stderr
    assert "Freshness" in (tmp_path / "site/benchmarks.html").read_text()
    for page in (tmp_path / "site").rglob("*.html"):
        text = page.read_text()
        assert 'src="http' not in text, page
        assert '<link rel="stylesheet" href="http' not in text, page


def test_a_broken_link_stops_the_build(tmp_path: Path) -> None:
    built = build(tmp_path, "\n[nowhere](guides/producing.md#no-such-heading)\n")
    assert built.returncode != 0
    assert "anchor does not exist" in built.stdout + built.stderr


def test_every_page_is_in_the_navigation() -> None:
    navigation = (DOCS.parent / "mkdocs.yml").read_text()
    pages = [str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")]
    assert [page for page in pages if f": {page}\n" not in navigation] == []
