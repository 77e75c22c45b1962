"""The jars of Kafka: found in the local Maven cache, fetched the first time, checked every time.

Kafka is published as Maven coordinates, and `jgo` fetches those without Maven. What belongs to a
broker of this version is written down beside this file (`kafka_jars.lock`: coordinates, sha256,
size), so nothing is resolved at start: no metadata is read, and a jar that is not the one that was
tested, or that an interrupted fetch cut short, is fetched again instead of being run. From where
they come is jgo's business and configuration; no address stands in this project.

Fetching happens in a few threads, watched from here: an error, or no byte for `STALL_S`, ends it
with what to do instead. A request that hangs cannot be interrupted, hence daemon threads that are
left behind rather than a pool that would be waited for.

Run as a program, this file resolves the coordinates again and writes the lock.
"""

import contextlib
import fcntl
import hashlib
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.deploy.local.services.service_errors import JarsUnavailable

if TYPE_CHECKING:
    from jgo.maven import MavenContext

KAFKA_COORDINATES = (
    "org.apache.kafka:kafka_2.13:4.2.0",
    # Named although Kafka depends on it: what log4j-core manages would pull an older one.
    "org.apache.kafka:kafka-clients:4.2.0",
    "org.apache.logging.log4j:log4j-slf4j-impl:2.25.3",
    "org.apache.logging.log4j:log4j-core:2.25.3",
)
LOCK_PATH = Path(__file__).with_name("kafka_jars.lock")
FETCHERS = 4  # the wait is for round trips: 46 jars, half of them smaller than 200 kB
STALL_S = 10.0  # without a byte from anywhere, we stop and say so
REQUEST_TIMEOUT_S = 5

WHAT_TO_DO = (
    "Use a Kafka that runs (--kafka HOST:PORT or HEADRACE_KAFKA), or name a directory with the "
    "jars of one, such as libs/ of its download (--kafka-jars DIR or HEADRACE_KAFKA_JARS)."
)

OnBytes = Callable[[int, int], None]
"""Told (bytes so far, bytes in all) while jars are fetched."""


@dataclass(frozen=True)
class Jar:
    """One line of the lock."""

    coordinates: str  # group:artifact:version
    sha256: str
    size_bytes: int

    def path_in(self, cache: Path) -> Path:
        """Where a Maven cache keeps it."""
        group, artifact, version = self.coordinates.split(":")
        return cache.joinpath(*group.split("."), artifact, version, f"{artifact}-{version}.jar")

    def is_whole(self, path: Path) -> bool:
        """Whether the file is there and is this jar, to the bit."""
        try:
            if path.stat().st_size != self.size_bytes:
                return False
            with path.open("rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest() == self.sha256
        except (FileNotFoundError, NotADirectoryError):
            return False


def kafka_jars(directory: Path | None = None, on_bytes: OnBytes | None = None) -> list[Path]:
    """The class path of a broker: the jars of `directory`, or the locked ones, fetched if need be.

    Raises JarsUnavailable, saying what to do.
    """
    return _jars_of(directory) if directory is not None else _locked_jars(on_bytes)


def _jars_of(directory: Path) -> list[Path]:
    jars = sorted(directory.glob("*.jar"))
    for needed in ("kafka_2.13-*.jar", "kafka-clients-*.jar", "log4j-core-*.jar"):
        if not any(jar.match(needed) for jar in jars):
            raise JarsUnavailable(
                f"expected the jars of Kafka 4 in {directory}, {needed} among them, found "
                f"{len(jars)} jars and not that one. Name libs/ of a Kafka download, leave "
                "--kafka-jars and HEADRACE_KAFKA_JARS out to have the jars fetched, or use a Kafka "
                "that runs (--kafka HOST:PORT or HEADRACE_KAFKA)."
            )
    return jars


def read_lock(path: Path = LOCK_PATH) -> list[Jar]:
    """The locked jars, in the order of the class path."""
    rows = (line.split() for line in path.read_text().splitlines() if not line.startswith("#"))
    return [Jar(coordinates, sha256, int(size)) for coordinates, sha256, size in rows]


def _locked_jars(on_bytes: OnBytes | None) -> list[Path]:
    jars = read_lock()
    maven = _maven(on_chunk=lambda _: None)
    paths = [jar.path_in(maven.repo_cache) for jar in jars]
    try:
        if not all(jar.is_whole(path) for jar, path in zip(jars, paths, strict=True)):
            with _only_one_fetches(maven.repo_cache):
                missing = [jar for jar in jars if not jar.is_whole(jar.path_in(maven.repo_cache))]
                _fetch(missing, on_bytes or (lambda _done, _total: None))
    except OSError as error:
        raise JarsUnavailable(
            f"the jars of Kafka cannot be kept in {maven.repo_cache}: {error}. {WHAT_TO_DO}"
        ) from error
    return paths


@contextlib.contextmanager
def _only_one_fetches(cache: Path) -> Iterator[None]:
    """Two that fetch into one cache at the same time would take each other's halves for whole."""
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "headrace-kafka.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


class _Fetch:
    """A fetch under way: what is left to do, how far it is, and the first thing that went wrong."""

    def __init__(self, jars: Sequence[Jar]) -> None:
        self.left: queue.SimpleQueue[Jar] = queue.SimpleQueue()
        for jar in jars:
            self.left.put(jar)
        self.jars_left = len(jars)
        self.bytes_done = 0
        self.error: Exception | None = None
        self.changed = threading.Condition()

    def work(self) -> None:
        """One thread: fetch what is left until nothing is, or somebody failed."""
        maven = _maven(on_chunk=self._add_bytes)
        while self.error is None:
            try:
                jar = self.left.get_nowait()
            except queue.Empty:
                return
            try:
                _fetch_one(jar, maven)
            except Exception as error:  # noqa: BLE001 (raised again by the thread that waits)
                with self.changed:
                    self.error = error
                    self.changed.notify_all()
                return
            with self.changed:
                self.jars_left -= 1
                self.changed.notify_all()

    def _add_bytes(self, count: int) -> None:
        with self.changed:
            self.bytes_done += count
            self.changed.notify_all()


def _fetch(jars: Sequence[Jar], on_bytes: OnBytes) -> None:
    fetch = _Fetch(jars)
    total = sum(jar.size_bytes for jar in jars)
    for _ in range(FETCHERS):
        threading.Thread(target=fetch.work, daemon=True).start()
    seen, seen_at = (-1, -1), time.monotonic()
    while True:
        with fetch.changed:
            if fetch.jars_left and fetch.error is None:
                fetch.changed.wait(0.1)
            error, jars_left, bytes_done = fetch.error, fetch.jars_left, fetch.bytes_done
        if (jars_left, bytes_done) != seen:
            seen, seen_at = (jars_left, bytes_done), time.monotonic()
            on_bytes(bytes_done, total)
        if not jars_left:
            return
        stalled = time.monotonic() - seen_at > STALL_S
        if error is not None or stalled:
            why = f"nothing came for {STALL_S:g} s" if error is None else _in_short(error)
            raise JarsUnavailable(
                f"the jars of Kafka could not be fetched ({jars_left} of {len(jars)} "
                f"missing): {why}. {WHAT_TO_DO}"
            ) from error


def _fetch_one(jar: Jar, maven: "MavenContext") -> None:
    path = jar.path_in(maven.repo_cache)
    path.unlink(missing_ok=True)  # cut short, or not what it should be
    maven.create_dependency(jar.coordinates).artifact.resolve()
    if not jar.is_whole(path):
        path.unlink(missing_ok=True)
        raise JarsUnavailable(
            f"expected {jar.coordinates} with sha256 {jar.sha256}, found another file under that "
            "name, and removed it"
        )


def _maven(on_chunk: Callable[[int], None]) -> "MavenContext":
    """jgo's view of Maven, with the user's own cache and repositories; theirs are asked first."""
    from jgo.config import GlobalSettings
    from jgo.maven import MavenContext, PythonResolver

    @contextlib.contextmanager
    def on_file(_name: str, _size: int) -> Iterator[Callable[[int], None]]:
        yield on_chunk

    settings = GlobalSettings.load()
    maven = MavenContext(
        resolver=PythonResolver(progress_callback=on_file),
        repo_cache=settings.repo_cache,
        timeout=REQUEST_TIMEOUT_S,
    )
    maven.remote_repos = {**settings.repositories, **maven.remote_repos}
    return maven


def _in_short(error: BaseException) -> str:
    """The innermost cause: requests wraps three times what the operating system said once."""
    while (inner := error.__cause__ or error.__context__) is not None:
        error = inner
    return f"{type(error).__name__}: {error}"


def write_lock(path: Path = LOCK_PATH) -> int:
    """Resolve KAFKA_COORDINATES and write down what they need; how many jars that is."""
    maven = _maven(on_chunk=lambda _: None)
    wanted, needed = maven.resolver.resolve(
        [maven.create_dependency(coordinates) for coordinates in KAFKA_COORDINATES]
    )
    head = [line for line in path.read_text().splitlines() if line.startswith("#")]
    lines = []
    for dependency in [*wanted, *needed]:
        artifact = dependency.artifact
        content = artifact.resolve().read_bytes()
        coordinates = f"{artifact.groupId}:{artifact.artifactId}:{artifact.version}"
        lines.append(f"{coordinates} {hashlib.sha256(content).hexdigest()} {len(content)}")
    path.write_text("\n".join([*head, *lines]) + "\n")
    return len(lines)


if __name__ == "__main__":
    print(f"{write_lock()} jars in {LOCK_PATH}")
