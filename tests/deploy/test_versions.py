"""The package, the changelog, the chart and the images have one version."""

import re
import tomllib
from pathlib import Path

import yaml

from tests.deploy.chart.helm import CHART, example, render
from tests.deploy.command import headrace as run_process

ROOT = Path(__file__).resolve().parents[2]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
IMAGE = re.compile(r"\bheadrace:(\d[\w.]*)")
"""An image of headrace, with its tag up to `-deep`."""


def test_the_command_prints_the_version_of_the_package() -> None:
    assert run_process("--version").stdout == f"headrace {VERSION}\n"


def test_the_newest_section_of_the_changelog_is_that_of_the_version() -> None:
    newest = re.search(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None
    assert re.findall(r"\d+\.\d+\.\d+", newest[1])[:1] == [VERSION]


def test_the_chart_and_its_default_image_have_the_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (VERSION, VERSION)
    images = set(re.findall(r"'image': '([^']+)'", str(render(example("small")))))
    assert images == {f"headrace:{VERSION}"}


def test_every_image_that_a_file_or_page_names_has_the_version() -> None:
    paths = [*(ROOT / "deploy").rglob("*"), *(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]
    texts = {
        str(path.relative_to(ROOT)): path.read_text()
        for path in paths
        if path.suffix in (".md", ".yaml", ".tpl") or path.name == "Containerfile"
    }
    tags = {name: set(IMAGE.findall(text)) for name, text in texts.items()}
    assert {name: found for name, found in tags.items() if found - {VERSION}} == {}
    assert sum(map(bool, tags.values())) > 3
    label = f'org.opencontainers.image.version="{VERSION}"'
    assert label in texts["deploy/image/Containerfile"]
