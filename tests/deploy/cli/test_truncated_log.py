"""Commands that read a log of which a file is cut off."""

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from headrace.deploy.models.shipped import path_of
from headrace.ingest.kafka.settings import KafkaSettings, TopicNames
from headrace.ingest.kafka.topics import ensure_topics, topics_for
from tests.deploy.in_process import Commands

START_MS = 1_767_225_600_000


@pytest.mark.parametrize("command", ["run", "check", "ingest replay"])
def test_a_command_refuses_a_log_with_a_file_that_is_cut_off(
    kafka: str, headrace: Commands, command: str, fresh_name: Callable[[str], str], tmp_path: Path
) -> None:
    def event(number: int) -> str:
        return json.dumps({"impression_id": f"i{number}", "timestamp_ms": START_MS + number})

    folder = tmp_path / "log"
    folder.mkdir()
    (folder / "impressions.ndjson").write_text("\n".join(map(event, range(9_000))))
    clicks = "\n".join(map(event, range(0, 9_000, 3))).encode()
    whole = pa.compress(clicks, codec="zstd", asbytes=True)
    (folder / "clicks.ndjson.zst").write_bytes(whole[: len(whole) // 2])
    words = [*command.split(), "--model", str(path_of("news"))]
    words += [str(folder)] if command == "check" else ["--data", str(folder)]
    if command != "check":
        words += ["--kafka", kafka, "--speed", "max"]
    if command == "ingest replay":
        prefix = f"{fresh_name('cut')}."
        words += ["--topics-prefix", prefix]
        ensure_topics(KafkaSettings(kafka, names=TopicNames(prefix)), topics_for("news"))
    ended = headrace(*words)
    said = " ".join(ended.err.split())
    assert ended.code == 2, said
    assert "clicks.ndjson.zst: expected a whole file" in said
