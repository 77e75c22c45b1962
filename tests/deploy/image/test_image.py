"""The image runs every part on a read-only root, as a user without a name."""

import json
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from headrace.deploy.local.services.waiting import wait_until
from headrace.deploy.models.shipped import path_of
from tests.deploy.image.build import DEEP, PLAIN, missing
from tests.deploy.image.container import UnpackedImage, unpacked
from tests.deploy.image.parts import GENEROUS_S, PartsInContainers

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UnpackedImage]:
    # not when tests are collected: buildah waits for a build that is under way
    if reason := missing(PLAIN):
        pytest.skip(reason)
    with unpacked(PLAIN, tmp_path_factory.mktemp("runc")) as image:
        yield image


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UnpackedImage]:
    """The image with torch."""
    if reason := missing(DEEP):
        pytest.skip(reason)
    with unpacked(DEEP, tmp_path_factory.mktemp("runc")) as image:
        yield image


def test_the_image_prints_its_version(image: UnpackedImage, tmp_path: Path) -> None:
    printed = image.output("--version", config=tmp_path)
    assert image.settings["Labels"]["org.opencontainers.image.version"] in printed


def test_the_user_of_the_image_is_not_root(image: UnpackedImage) -> None:
    assert int(image.settings["User"].partition(":")[0]) > 0


def test_the_bill_of_materials_lists_what_is_installed(image: UnpackedImage) -> None:
    home = image.root / "opt/headrace"
    listed = json.loads((home / "sbom.cdx.json").read_text())
    assert listed["bomFormat"] == "CycloneDX"
    components = {each["name"].lower().replace("_", "-") for each in listed["components"]}
    packages = home.glob("lib/python3*/site-packages/*.dist-info")
    installed = {each.name.partition("-")[0].lower().replace("_", "-") for each in packages}
    assert {"numba", "confluent-kafka", "headrace"} <= installed
    assert installed - components <= {"headrace"}  # the subject of the bill is in its metadata
    assert "pip" not in components


def test_a_joiner_and_a_server_run_from_the_image_and_drain(
    image: UnpackedImage, tmp_path: Path, kafka: str, valkey: str
) -> None:
    shutil.copy(path_of("demo"), tmp_path / "model.toml")
    parts = PartsInContainers(image, tmp_path, kafka, valkey)
    parts.create()
    with parts.ready("joiner") as joiner, parts.ready("server") as server:
        answer = httpx.post(
            f"http://127.0.0.1:{server.port}/v1/models/demo:predict",
            json={"context": {"user_id": "u1"}, "candidates": [{"item_id": "i1"}]},
            timeout=60,
        )
        assert answer.status_code == 200, answer.text
        for part in (joiner, server):
            status, left = part.container.stop(signal.SIGTERM)
            assert (status, left) == (0, []), part.container.output


def test_the_bill_of_materials_of_the_deep_image_lists_torch(deep: UnpackedImage) -> None:
    listed = json.loads((deep.root / "opt/headrace/sbom.cdx.json").read_text())
    assert "torch" in {each["name"] for each in listed["components"]}


def test_a_deepfm_learns_and_is_served_from_the_deep_image(
    deep: UnpackedImage, tmp_path: Path, kafka: str, valkey: str
) -> None:
    shutil.copy(path_of("news_deepfm"), tmp_path / "model.toml")
    parts = PartsInContainers(deep, tmp_path, kafka, valkey)
    parts.create()
    with (
        parts.ready("collector") as collector,
        parts.ready("joiner"),
        parts.ready("learner") as learner,
        parts.ready("server") as server,
    ):
        before = _deepfm_prediction(server.port)
        now_ms = int(time.time() * 1000) - 1000
        shown = [
            {**_SHOWN, "impression_id": f"i{number}", "timestamp_ms": now_ms + number}
            for number in range(200)
        ]
        answer = httpx.post(
            f"http://127.0.0.1:{collector.port}/v1/impressions", json=shown, timeout=60
        )
        assert answer.json()["accepted"] == len(shown), answer.text
        learned = wait_until(lambda: _deepfm_prediction(server.port) < before, GENEROUS_S)
        assert learned, learner.container.output
        status, left = learner.container.stop(signal.SIGTERM)
        assert (status, left) == (0, []), learner.container.output


_SHOWN = {
    "article_id": "a1",
    "user_id": "u1",
    "page_id": "p1",
    "device_type": "phone",
    "slate_size": 5,
}


def _deepfm_prediction(port: int) -> float:
    answer = httpx.post(
        f"http://127.0.0.1:{port}/v1/models/news_deepfm:predict",
        json={"context": {}, "candidates": [_SHOWN]},
        timeout=60,
    )
    assert answer.status_code == 200, answer.text
    prediction: float = answer.json()["predictions"][0]["score"]
    return prediction
