"""Finds the jars of Kafka in the local Maven cache, and fetches those that are missing or damaged.

Kafka is published under Maven coordinates, and `jgo` fetches those without Maven. `kafka_jars.lock`
lists the jars of this version of the broker: coordinates, sha256 and size. A start therefore
resolves nothing and reads no metadata. A jar that differs from the lock, for example after an
interrupted fetch, is fetched again. The source of the jars is configured in jgo.

A few threads fetch. A connection without a byte for `REQUEST_TIMEOUT_S` fails, and the first error
ends the fetch with an error that names the alternatives.

Run as a program, this file resolves the coordinates again and writes the lock.
"""

import contextlib
import fcntl
import hashlib
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.deploy.errors import DeployError

if TYPE_CHECKING:
    from jgo.maven import MavenContext

KAFKA_COORDINATES = (
    "org.apache.kafka:kafka_2.13:4.2.0",
    # Named although Kafka depends on it: log4j-core would select an older version.
    "org.apache.kafka:kafka-clients:4.2.0",
    "org.apache.logging.log4j:log4j-slf4j-impl:2.25.3",
    "org.apache.logging.log4j:log4j-core:2.25.3",
)
LOCK_PATH = Path(__file__).with_name("kafka_jars.lock")
FETCHERS = 4  # most time is round trips: 46 jars, half of them smaller than 200 kB
REQUEST_TIMEOUT_S = 10  # to connect, and without a byte

WHAT_TO_DO = (
    "Use a running Kafka (--kafka HOST:PORT or HEADRACE_KAFKA), or the directory with the jars of "
    "a "
    "Kafka download, its libs/ (--kafka-jars DIR or HEADRACE_KAFKA_JARS)."
)

OnBytes = Callable[[int, int], None]
"""Called with (bytes so far, total bytes) while jars are fetched."""


@dataclass(frozen=True)
class Jar:
    """One line of the lock."""

    coordinates: str  # group:artifact:version
    sha256: str
    size_bytes: int

    def path_in(self, cache: Path) -> Path:
        """Return the path of the jar in a Maven cache."""
        group, artifact, version = self.coordinates.split(":")
        return cache.joinpath(*group.split("."), artifact, version, f"{artifact}-{version}.jar")

    def is_intact(self, path: Path) -> bool:
        """Return whether the file exists and has the locked size and digest."""
        try:
            if path.stat().st_size != self.size_bytes:
                return False
            with path.open("rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest() == self.sha256
        except (FileNotFoundError, NotADirectoryError):
            return False


def kafka_jars(directory: Path | None = None, on_bytes: OnBytes | None = None) -> list[Path]:
    """Return the class path of a broker: the jars of `directory`, or the locked ones.

    Fetches locked jars that are missing. Raises DeployError with the next step.
    """
    return _jars_of(directory) if directory is not None else _locked_jars(on_bytes)


def _jars_of(directory: Path) -> list[Path]:
    jars = sorted(directory.glob("*.jar"))
    for needed in ("kafka_2.13-*.jar", "kafka-clients-*.jar", "log4j-core-*.jar"):
        if not any(jar.match(needed) for jar in jars):
            raise DeployError(
                f"expected the jars of Kafka 4 in {directory}, {needed} among them, got "
                f"{len(jars)} jars without it. Use libs/ of a Kafka download, omit --kafka-jars "
                "and HEADRACE_KAFKA_JARS to have the jars fetched, or use a running Kafka "
                "(--kafka HOST:PORT or HEADRACE_KAFKA)."
            )
    return jars


def read_lock() -> list[Jar]:
    """Return the locked jars in the order of the class path."""
    rows = (line.split() for line in LOCK_PATH.read_text().splitlines() if not line.startswith("#"))
    return [Jar(coordinates, sha256, int(size)) for coordinates, sha256, size in rows]


def _locked_jars(on_bytes: OnBytes | None) -> list[Path]:
    jars = read_lock()
    maven = _maven(on_chunk=lambda _: None)
    paths = [jar.path_in(maven.repo_cache) for jar in jars]
    try:
        if not all(jar.is_intact(path) for jar, path in zip(jars, paths, strict=True)):
            with _only_one_fetches(maven.repo_cache):
                missing = [jar for jar in jars if not jar.is_intact(jar.path_in(maven.repo_cache))]
                _fetch(missing, on_bytes or (lambda _done, _total: None))
    except OSError as error:
        raise DeployError(
            f"the jars of Kafka cannot be stored in {maven.repo_cache}: {error}. {WHAT_TO_DO}"
        ) from error
    return paths


@contextlib.contextmanager
def _only_one_fetches(cache: Path) -> Iterator[None]:
    """Lock the cache: two fetches at the same time would read each other's partial files."""
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "headrace-kafka.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _fetch(jars: Sequence[Jar], on_bytes: OnBytes) -> None:
    total, done, lock = sum(jar.size_bytes for jar in jars), 0, threading.Lock()

    def add(count: int) -> None:
        nonlocal done
        with lock:
            done += count
            on_bytes(done, total)

    with ThreadPoolExecutor(FETCHERS) as pool:
        fetching = [pool.submit(_fetch_one, jar, _maven(add)) for jar in jars]
        try:
            for each in as_completed(fetching):
                each.result()
        except Exception as error:
            pool.shutdown(cancel_futures=True)
            missing = sum(each.cancelled() or each.exception() is not None for each in fetching)
            raise DeployError(
                f"the jars of Kafka could not be fetched ({missing} of {len(jars)} missing): "
                f"{_in_short(error)}. {WHAT_TO_DO}"
            ) from error


def _fetch_one(jar: Jar, maven: "MavenContext") -> None:
    path = jar.path_in(maven.repo_cache)
    path.unlink(missing_ok=True)  # partial or different
    maven.create_dependency(jar.coordinates).artifact.resolve()
    if not jar.is_intact(path):
        path.unlink(missing_ok=True)
        raise DeployError(
            f"expected {jar.coordinates} with sha256 {jar.sha256}, got another file, which was "
            "removed"
        )


def _maven(on_chunk: Callable[[int], None]) -> "MavenContext":
    """Return the Maven context of jgo. Repositories that the user configured come first."""
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
    """Return the innermost cause: requests wraps an error of the operating system three times."""
    while (inner := error.__cause__ or error.__context__) is not None:
        error = inner
    return f"{type(error).__name__}: {error}"


def write_lock() -> int:
    """Resolve KAFKA_COORDINATES and write the lock; return the number of jars."""
    maven = _maven(on_chunk=lambda _: None)
    wanted, needed = maven.resolver.resolve(
        [maven.create_dependency(coordinates) for coordinates in KAFKA_COORDINATES]
    )
    head = [line for line in LOCK_PATH.read_text().splitlines() if line.startswith("#")]
    lines = []
    for dependency in [*wanted, *needed]:
        artifact = dependency.artifact
        content = artifact.resolve().read_bytes()
        coordinates = f"{artifact.groupId}:{artifact.artifactId}:{artifact.version}"
        lines.append(f"{coordinates} {hashlib.sha256(content).hexdigest()} {len(content)}")
    LOCK_PATH.write_text("\n".join([*head, *lines]) + "\n")
    return len(lines)


if __name__ == "__main__":
    print(f"{write_lock()} jars in {LOCK_PATH}")
