"""Today's code reads what version 1 wrote to Kafka and to files, and continues there."""

import shutil
from pathlib import Path

import pyarrow.dataset
import pytest

from headrace.ingest.archive.archiver import Archiver, ArchiveSettings
from headrace.ingest.archive.parquet_folder import ArchiveFolder
from headrace.ingest.dead_letters.letter import Letter, SettledLetters, unpack
from headrace.ingest.kafka.fakes import ListReader
from headrace.ingest.kafka.protocols import Source
from headrace.learner.loop.scores import unpack as unpack_scores
from headrace.serving.deployments.deployment_records import Deployments
from headrace.serving.models.aliases import Alias, Aliases
from tests.formats import golden
from tests.formats.small_model import (
    NOW_MS,
    decoded_message,
    example_records,
    following_examples,
    joined,
    spec_of,
)
from tests.ingest.events_of import TOPICS

POLICIES = pytest.mark.parametrize("policy", ["immediate", "window"])


@POLICIES
def test_the_messages_of_examples_have_the_recorded_values(policy: str) -> None:
    fields = spec_of(policy).fields
    recorded = golden.read(f"joined_{policy}_decoded.json")
    records = example_records(golden.read(f"joined_{policy}.json"))
    assert [decoded_message(each.value, fields) for each in records] == recorded
    assert any(not each["kinds"] and each["checkpoint"] for each in recorded), "an empty batch"
    assert any(each["until"] for each in recorded), "a batch before the last of a transaction"


@POLICIES
@pytest.mark.parametrize("forgotten", [False, True], ids=["offsets", "offsets forgotten"])
def test_a_joiner_continues_at_a_recorded_checkpoint_without_losing_or_repeating_an_example(
    policy: str, forgotten: bool
) -> None:
    transactions = golden.transactions_of(golden.read(f"joined_{policy}.json"))
    if forgotten:  # the checkpoint in the last batch decides
        transactions.offsets.clear()
    begin = len(transactions.written)
    joined(golden.records_by_source(golden.read("events.json")), transactions, policy)
    found = following_examples(transactions.written[begin:], spec_of(policy).fields)
    assert found == golden.read(f"joined_{policy}_following.json")
    assert len(found) > 20


def test_dead_letters_and_their_settlement_have_the_recorded_values() -> None:
    recorded = golden.read("dead_letters.json")
    *read, settled = (unpack(golden.bytes_of(each)) for each in recorded["messages"])
    letters = [each for each in read if isinstance(each, Letter)]
    assert len(letters) == len(read) > 2
    assert [each.reason_name for each in letters] == recorded["reasons"]
    assert [list(each.origin) for each in letters] == recorded["origins"]
    assert [golden.text_of(each.event_bytes) for each in letters] == recorded["events"]
    assert isinstance(settled, SettledLetters)
    assert [list(each) for each in settled.retried] == recorded["retried"]
    assert [list(each) for each in settled.discarded] == recorded["discarded"]


def test_messages_of_scores_have_the_recorded_values() -> None:
    recorded = golden.read("scores.json")
    found: list[list[object]] = []
    for message in recorded["messages"]:
        scores = unpack_scores(golden.bytes_of(message))
        columns = scores.impression_ids.to_pylist(), scores.event_ms.tolist()
        found += map(list, zip(*columns, scores.scores.tolist(), strict=True))
    assert found == recorded["scores"]


def test_recorded_deployments_and_aliases_point_at_the_same_models(tmp_path: Path) -> None:
    state = Deployments()
    for key, value in golden.read("deployments.json"):
        state = state.after(golden.bytes_of(key), golden.bytes_of(value))
    assert state.models == {"test": (golden.V1 / "immediate.toml").read_text()}
    assert state.aliases == {"production": "news=95 news-2=5"}
    file = shutil.copy(golden.V1 / "aliases.json", tmp_path)
    aliases = Aliases(["news", "news-2"], {}, lambda: 0, Path(file))
    assert aliases.table == {
        "production": Alias("news=95 news-2=5", "news", NOW_MS),
        "shadow": Alias("news-2", "", NOW_MS),
    }


def test_an_archiver_continues_a_recorded_archive_with_each_row_once(tmp_path: Path) -> None:
    shutil.copytree(golden.V1 / "archive", tmp_path / "archive")
    events = golden.records_by_source(golden.read("events.json"))
    folder = ArchiveFolder(str(tmp_path / "archive"))
    archiver = Archiver(ListReader(events), folder, None, ArchiveSettings())
    for _ in range(20):
        archiver.step(0.0)
    archiver.finish()
    folder.close()
    for recorded in (golden.V1 / "archive").rglob("*.parquet"):  # none is written again
        kept = tmp_path / "archive" / recorded.relative_to(golden.V1 / "archive")
        assert kept.read_bytes() == recorded.read_bytes()
    for topic in (TOPICS.impressions, TOPICS.clicks):
        rows = pyarrow.dataset.dataset(tmp_path / "archive" / topic, partitioning="hive")
        found = rows.to_table().select(["partition", "offset"]).to_pylist()
        assert sorted((row["partition"], row["offset"]) for row in found) == [
            (partition, record.offset)
            for partition in range(2)
            for record in events[Source(topic, partition)]
        ]
