"""The commands of docs/guides/batch.md run as they are printed, but for the addresses in them."""

import random
import shlex
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import httpx
import pyarrow.parquet as pq
import pytest

from headrace.deploy.reports.observer import copy_rows
from headrace.ingest.archive.parquet_folder import ArchiveError
from headrace.learner.batch.archive_source import ArchiveSource
from headrace.learner.batch.sources import FilePosition
from headrace.learner.local.in_memory_model import InMemoryModel
from headrace.learner.spec.model_spec import load_spec
from headrace.pserver.redis_backend.redis_store import open_store
from tests.deploy.command import running
from tests.deploy.in_process import Commands, headrace
from tests.deploy.learners.learned_model import LearnedModel, counts_of
from tests.docs.pages import DOCS, commands
from tests.learner.shop import shop_rows, shop_spec

__all__ = ["headrace"]

FIT, SERVE, ARCHIVED, RESTORE, LEARN, TOGETHER, SERVE_TABLE, RESTORE_TABLE, EXPORT = commands(
    (DOCS / "guides" / "batch.md").read_text()
)
LAYOUT = '[event]\ntimestamp = "timestamp_ms"\n[click]\ncolumn = "clicked"\n'
ROWS = 2_000
DEADLINE_S = 240.0


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh_name: Callable[[str], str]) -> Path:
    """A folder with the files that the page names: the spec, the layout and two months of a log."""
    text = shop_spec().text.replace('name = "shop"', f'name = "{fresh_name("news")}"')
    for name in ("news.toml", "table.toml"):
        (tmp_path / name).write_text(text)
    (tmp_path / "layout.toml").write_text(LAYOUT)
    (tmp_path / "log").mkdir()
    for month in (1, 2):
        pq.write_table(shop_rows(ROWS, month), tmp_path / f"log/2026-0{month}.parquet")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def words_of(line: str, **addresses: str) -> list[str]:
    """Return the words of a command behind `headrace`, with other addresses."""
    for printed, real in {"redis://valkey:6379": "redis", "s3://bucket/archive": "archive"}.items():
        line = line.replace(printed, addresses.get(real, printed))
    return shlex.split(line)[1:]


def test_the_page_fits_a_log_alone_and_with_a_store_and_exports_it(
    home: Path, headrace: Commands, valkey_node: str
) -> None:
    fitted = headrace(*words_of(FIT))
    assert fitted.code == 0, fitted.err
    assert f" rows of {2 * ROWS:,} examples" in fitted.out
    together = headrace(*words_of(TOGETHER, redis=valkey_node))
    assert together.code == 0, together.err
    rows = [
        InMemoryModel.load(home / "models", each.out.partition(":")[0]).rows
        for each in (fitted, together)
    ]
    assert rows[0].shows.tolist() == rows[1].shows.tolist()
    exported = headrace(*words_of(EXPORT))
    assert exported.code == 0, exported.err
    assert (home / "news.onnx").exists()


def test_the_page_serves_a_snapshot(home: Path, headrace: Commands) -> None:
    assert headrace(*words_of(FIT)).code == 0
    assert words_of(SERVE_TABLE) == words_of(SERVE.replace("news", "table"))
    with running(*words_of(SERVE), "--port", "0", folder=home) as served:
        url = served.wait_for(r"on (http://127\.0\.0\.1:\d+)").group(1)
        wait(lambda: httpx.get(f"{url}/health/ready", timeout=60).is_success)
        asked = {"context": {"user": "u1"}, "candidates": [{"item": 1}, {"item": 2}]}
        answer = httpx.post(f"{url}/v1/models/news:predict", json=asked, timeout=60)
        assert len(answer.json()["predictions"]) == 2, answer.text
        served.process.terminate()
        assert served.end() == 0


def test_the_page_loads_the_snapshot_of_a_table_into_a_parameter_server(
    home: Path, headrace: Commands, valkey_node: str
) -> None:
    fitted = headrace(*words_of(FIT))
    assert fitted.code == 0, fitted.err
    restored = headrace(*words_of(RESTORE_TABLE), HEADRACE_REDIS=valkey_node)
    assert restored.code == 0, restored.err
    with closing(open_store(valkey_node, load_spec(home / "table.toml").name)) as store:
        rows = copy_rows(store).everything().existing()
    assert f"{rows.ids.shape[0]:,} rows of {2 * ROWS:,} examples" in fitted.out


@pytest.mark.long
def test_a_learner_continues_after_the_archive_of_the_page(
    tmp_path: Path,
    headrace: Commands,
    kafka: str,
    valkey: str,
    fresh_name: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    model = LearnedModel(kafka, valkey, fresh_name("news"), tmp_path, seed)
    (tmp_path / "news.toml").write_text(model.spec.text)
    where = {"HEADRACE_KAFKA": kafka, "HEADRACE_REDIS": valkey}
    examples = len(model.produce(300))
    sink = ("ingest", "sink", "archive", "--model", "news.toml", "--most-age-s", "0.5")
    with running(*sink, folder=tmp_path, **where):
        wait(lambda: archived(model, tmp_path) == examples)
    monkeypatch.chdir(tmp_path)
    for line in (ARCHIVED, RESTORE):
        ended = headrace(*words_of(line, archive="archive"), **where)
        assert ended.code == 0, ended.err
    model.produce(300)
    with running(*words_of(LEARN), folder=tmp_path, **where) as learner:
        model.failures = []
        model.wait_learned()
        learner.process.terminate()
        assert learner.end() == 0
    with closing(open_store(valkey, model.spec.name)) as store:
        rows = copy_rows(store).everything().existing()
    assert counts_of(rows, model.spec) == model.counts


def archived(model: LearnedModel, home: Path) -> int:
    """Return how many examples of a model are in the archive."""
    try:
        blocks = ArchiveSource(str(home / "archive"), model.spec).blocks(FilePosition())
        return sum(len(each.examples) for each in blocks)
    except (ArchiveError, FileNotFoundError):
        return 0  # nothing is archived yet


def wait(done: Callable[[], bool]) -> None:
    """Wait for a condition, also while nothing answers."""
    deadline_s = time.monotonic() + DEADLINE_S
    while True:
        try:
            if done():
                return
        except httpx.TransportError:
            pass
        assert time.monotonic() < deadline_s
        threading.Event().wait(0.1)
