"""Kafka's jars match the lock, and an error names the alternatives if they are unavailable."""

import hashlib
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.deploy.errors import DeployError
from headrace.deploy.local.services import kafka_jars as jars
from headrace.deploy.local.services.kafka_jars import Jar, kafka_jars, read_lock

CONTENTS = {f"org.example.one:jar-{n}:1.0": f"content of jar {n}".encode() for n in range(6)}
LOCKED = [
    Jar(coordinates, hashlib.sha256(content).hexdigest(), len(content))
    for coordinates, content in CONTENTS.items()
]


class FakeMaven:
    """As much of jgo's MavenContext as is used: `create_dependency(...).artifact.resolve()`."""

    def __init__(self, cache: Path, on_chunk: Callable[[int], None]) -> None:
        self.repo_cache = cache
        self.on_chunk = on_chunk
        self.served = dict(CONTENTS)
        self.fetched: list[str] = []

    def create_dependency(self, coordinates: str) -> "FakeMaven":
        self._coordinates = coordinates
        return self

    @property
    def artifact(self) -> "FakeMaven":
        return self

    def resolve(self) -> None:
        path = Jar(self._coordinates, "", 0).path_in(self.repo_cache)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self.served[self._coordinates])
        self.fetched.append(self._coordinates)
        self.on_chunk(len(self.served[self._coordinates]))


@pytest.fixture
def maven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeMaven:
    """A Maven that serves CONTENTS, with an empty cache and a lock that names them."""
    fake = FakeMaven(tmp_path / "cache", lambda _: None)

    def same_maven(on_chunk: Callable[[int], None]) -> FakeMaven:
        fake.on_chunk = on_chunk
        return fake

    monkeypatch.setattr(jars, "_maven", same_maven)
    monkeypatch.setattr(jars, "read_lock", lambda: LOCKED)
    monkeypatch.setattr(jars, "FETCHERS", 1)  # the fake remembers what was asked of it
    return fake


def test_missing_jars_are_fetched_once_in_the_order_of_the_lock(maven: FakeMaven) -> None:
    seen: list[tuple[int, int]] = []

    first = kafka_jars(on_bytes=lambda done, total: seen.append((done, total)))
    second = kafka_jars()

    assert [path.read_bytes() for path in first] == list(CONTENTS.values())
    assert second == first
    assert maven.fetched == list(CONTENTS)
    in_all = sum(map(len, CONTENTS.values()))
    assert {total for _, total in seen} == {in_all}
    assert seen == sorted(seen)
    assert seen[-1] == (in_all, in_all)  # also where all was there before anybody looked


def test_a_truncated_or_changed_jar_is_fetched_again(maven: FakeMaven) -> None:
    paths = kafka_jars()
    maven.fetched.clear()
    paths[1].write_bytes(b"content")
    paths[4].write_bytes(b"Content of jar 4")

    kafka_jars()

    names = list(CONTENTS)
    assert maven.fetched == [names[1], names[4]]
    assert [path.read_bytes() for path in paths] == list(CONTENTS.values())


def test_a_jar_that_differs_from_the_lock_is_refused_and_removed(maven: FakeMaven) -> None:
    changed = LOCKED[2]
    maven.served[changed.coordinates] = b"content of another"

    with pytest.raises(DeployError, match=rf"{changed.coordinates}.*{changed.sha256}"):
        kafka_jars()

    assert not changed.path_in(maven.repo_cache).exists()


def test_the_lock_names_the_broker_and_every_jar_once() -> None:
    locked = read_lock()

    coordinates = [jar.coordinates for jar in locked]
    assert set(jars.KAFKA_COORDINATES) <= set(coordinates)
    assert len(set(coordinates)) == len(coordinates)
    assert all(len(jar.sha256) == 64 and jar.size_bytes > 0 for jar in locked)


def test_the_jars_of_a_given_directory_are_the_class_path(tmp_path: Path) -> None:
    names = ["kafka-clients-4.2.0.jar", "kafka_2.13-4.2.0.jar", "log4j-core-2.25.3.jar"]
    for name in [*names, "README"]:
        (tmp_path / name).touch()

    assert kafka_jars(tmp_path) == [tmp_path / name for name in names]


def test_a_directory_without_the_jars_of_kafka_is_refused_with_the_next_step(
    tmp_path: Path,
) -> None:
    (tmp_path / "kafka-clients-4.2.0.jar").touch()

    with pytest.raises(DeployError) as raised:
        kafka_jars(tmp_path)

    for word in (str(tmp_path), "kafka_2.13-*.jar", "1 jars", "--kafka-jars", "--kafka HOST:PORT"):
        assert word in str(raised.value)


def test_a_fetch_without_a_network_names_the_alternatives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("M2_REPO", str(tmp_path))
    for name in ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")

    with pytest.raises(DeployError) as raised:
        kafka_jars()

    for word in ("could not be fetched", "refused", "--kafka HOST:PORT", "--kafka-jars DIR"):
        assert word in str(raised.value)


def test_a_fetch_without_data_ends_with_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jars, "REQUEST_TIMEOUT_S", 0.3)
    monkeypatch.setenv("M2_REPO", str(tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as mute:
        for name in ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{mute.getsockname()[1]}")

        with pytest.raises(DeployError, match=r"timed out.*--kafka HOST:PORT"):
            kafka_jars()


def test_an_unwritable_maven_cache_is_named_in_the_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("M2_REPO", str(tmp_path / "file" / "cache"))

    with pytest.raises(DeployError, match=r"cannot be stored in .*file/cache"):
        kafka_jars()
