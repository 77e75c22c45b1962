"""Snapshots from the command line, with the real Kafka, the real Valkey and real learners."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.deploy.reports.observer import copy_rows
from headrace.ingest.kafka.reading.bounded_reader import offsets_at
from headrace.learner.errors import MarkOutsideTopic, WrongExamples
from headrace.pserver.errors import MissingModel
from headrace.pserver.redis_backend.node_connection import Call
from headrace.pserver.redis_backend.redis_store import RedisStore
from tests.deploy.in_process import Commands
from tests.deploy.learners.learned_model import FAR_MS, SUB_HASHES, LearnedModel, counts_of

BUCKETS = 8


@pytest.fixture
def model(
    kafka: str, valkey: str, tmp_path: Path, fresh_name: Callable[[str], str]
) -> LearnedModel:
    model = LearnedModel(kafka, valkey, fresh_name("kept"), tmp_path, random.randrange(1 << 30))
    model.make(BUCKETS)
    return model


def lose_a_shard(model: LearnedModel) -> list[int]:
    """The node that has bucket 0 comes back empty; return the buckets that were lost."""
    with model.store() as store:
        node = store.node_of(0)
        lost = [bucket for bucket in range(BUCKETS) if store.node_of(bucket) == node]
        delete(store, lost)
        shape_key = f"{{{model.spec.name}}}:shape".encode()
        if store.nodes.name_of(shape_key) == node:
            store.nodes.run([Call(shape_key, ("DEL", shape_key))])
    return lost


def delete(store: RedisStore, buckets: list[int]) -> None:
    names = ("log", "marks", *(f"rows:{n}" for n in range(SUB_HASHES)))
    keys = [store.key(bucket, name) for bucket in buckets for name in names]
    replies: list[Any] = store.nodes.run([Call(key, ("DEL", key)) for key in keys])
    assert not any(isinstance(reply, Exception) for reply in replies), replies


def counted(model: LearnedModel, name: str | None = None) -> dict[int, tuple[int, int]]:
    with model.store(name) as store:
        table = copy_rows(store)
        return counts_of(table.everything().existing(), model.spec)


def test_a_lost_shard_is_restored_and_a_copy_with_more_buckets_learns_on_from_the_same_examples(
    model: LearnedModel, headrace: Commands, tmp_path: Path, fresh_name: Callable[[str], str]
) -> None:
    storage = str(tmp_path / "shelf")
    of = ("--model", str(model.path), "--redis", model.valkey)
    model.produce(300)
    with model.learning():
        model.produce(300)
        taken = headrace("pserver", "snapshot", storage, *of)  # while it learns
        assert taken.code == 0, taken.err
        model.wait_learned()
    [listed] = json.loads(headrace("pserver", "snapshots", storage, "--json").out)
    assert listed["model"] == model.spec.name
    assert taken.out.startswith(f"{listed['name']}: {listed['rows']:,} rows in {BUCKETS} buckets")
    assert f"{listed['name']}: intact" in headrace("pserver", "snapshots", storage, "--verify").out

    lost = lose_a_shard(model)
    assert 0 < len(lost) < BUCKETS
    model.produce(100)
    restored = headrace("pserver", "restore", storage, *of)
    assert restored.code == 0, restored.err
    assert f"{len(lost)} buckets with " in restored.out
    model.learn()
    assert counted(model) == model.counts
    assert "no bucket is missing" in headrace("pserver", "restore", storage, *of).out

    copy = model.renamed(fresh_name("copy"))
    copied = headrace(
        "pserver", "restore", storage, *of, "--as", str(tmp_path / f"{copy.name}.toml"),
        "--buckets", str(4 * BUCKETS),
    )  # fmt: skip
    assert copied.code == 0, copied.err
    model.learn(copy, examples_of=model.spec.name)
    with model.store(copy.name) as store:
        assert store.shape().buckets == 4 * BUCKETS
        assert store.sub_hashes == SUB_HASHES
    assert counted(model, copy.name) == model.counts
    assert counted(model) == model.counts


def test_restored_empty_buckets_learn_all_examples_again_or_name_the_gap(
    model: LearnedModel, headrace: Commands
) -> None:
    of = ("--model", str(model.path), "--redis", model.valkey)
    model.produce(200)
    model.learn()
    with model.store() as store:
        delete(store, [1, 5])
    emptied = headrace("pserver", "restore", "--empty", *of)
    assert emptied.code == 0, emptied.err
    assert "2 buckets are empty now: 1, 5" in emptied.out
    model.learn()
    assert counted(model) == model.counts

    ends = offsets_at(model.kafka, model.topic, FAR_MS)
    with model.store() as store:
        delete(store, [2])
    headrace("pserver", "restore", "--empty", *of)
    model.forget_before(ends)
    with pytest.raises(MarkOutsideTopic, match=r"examples 0 to \d+ were deleted before they were"):
        model.learn()


def test_a_restore_without_a_snapshot_of_a_lost_shape_needs_the_number_of_buckets(
    model: LearnedModel, headrace: Commands
) -> None:
    of = ("--model", str(model.path), "--redis", model.valkey)
    with model.store() as store:
        key = f"{{{model.spec.name}}}:shape".encode()
        store.nodes.run([Call(key, ("DEL", key))])
    refused = headrace("pserver", "restore", "--empty", *of)
    assert refused.code == 2
    assert "expected --buckets" in refused.err
    assert headrace("pserver", "restore", "--empty", *of, "--buckets", str(BUCKETS)).code == 0
    with model.store() as store:
        assert store.shape().buckets == BUCKETS


def test_verify_names_a_damaged_snapshot_and_restore_refuses_it(
    model: LearnedModel, headrace: Commands, tmp_path: Path
) -> None:
    storage = tmp_path / "shelf"
    of = ("--model", str(model.path), "--redis", model.valkey)
    for _ in range(3):
        assert headrace("pserver", "snapshot", str(storage), *of).code == 0
    first, second, third = sorted(each.name for each in storage.iterdir())
    file = storage / third / "rows-00003.parquet"
    blob = bytearray(file.read_bytes())
    blob[9] ^= 1
    file.write_bytes(bytes(blob))
    verified = headrace("pserver", "snapshots", str(storage), "--verify")
    assert verified.code == 1
    assert f"{second}: intact" in verified.out
    assert f"{third}: damaged\n  rows-00003.parquet: expected sha256" in verified.out
    with model.store() as store:
        delete(store, [3])
    refused = headrace("pserver", "restore", str(storage), *of)
    assert refused.code == 2
    assert third in refused.err
    assert "rows-00003.parquet" in refused.err
    assert headrace("pserver", "restore", str(storage), *of, "--snapshot", second).code == 0

    file.unlink()
    shown = headrace("pserver", "snapshots", str(storage)).out
    assert "damaged: rows-00003.parquet: missing" in shown
    kept = headrace("pserver", "snapshots", str(storage), "--keep", "1", "--dry-run")
    assert kept.out == f"would remove {first} (0 rows)\n"
    assert (
        headrace("pserver", "snapshots", str(storage), "--keep", "1").out
        == f"removed {first} (0 rows)\n"
    )
    assert sorted(each.name for each in storage.iterdir()) == [second, third]
    assert (
        "nothing to remove"
        in headrace("pserver", "snapshots", str(storage), "--older-than", "1").out
    )
    assert "got neither" in headrace("pserver", "snapshots", str(storage), "--dry-run").err


def test_a_restore_names_what_differs_from_the_snapshot(
    model: LearnedModel, headrace: Commands, tmp_path: Path, fresh_name: Callable[[str], str]
) -> None:
    storage = str(tmp_path / "shelf")
    of = ("--model", str(model.path), "--redis", model.valkey)
    assert "got none" in headrace("pserver", "restore", storage, *of).err
    headrace("pserver", "snapshot", storage, *of)

    def refused(spec_name: str, *more: str) -> str:
        said = headrace(
            "pserver", "restore", storage, *of, "--as", str(tmp_path / f"{spec_name}.toml"), *more
        )
        assert said.code == 2
        return said.err

    faster = model.renamed(fresh_name("faster"), **{"alpha = ": "alpha = 0.1 # "})
    said = refused(faster.name)
    assert f'"{faster.name}" to be "{model.spec.name}" under another name' in said
    assert "[optimizer]" in said
    assert "[fields]" not in said
    assert "+alpha = 0.1" in said
    other = model.renamed(fresh_name("other"), **{"window_s = 600": "window_s = 700"})
    assert "[fields], [label] or [examples]" in refused(other.name)
    assert "another name than" in refused(model.spec.name)
    same = model.renamed(fresh_name("same"))
    assert "at least the snapshot's 8" in refused(same.name, "--buckets", "4")
    assert "a power of two" in refused(same.name, "--buckets", "12")
    with model.store(same.name) as store, pytest.raises(MissingModel):
        store.missing()

    model.produce(60)
    with model.store(other.name) as store:
        with model.store() as made:
            shape = made.shape()
        store.create(type(shape)(other.name, 2, other.width, other.fingerprint, other.text))
    with pytest.raises(WrongExamples, match=f"{model.topic}.*fingerprint"):
        model.learn(other, examples_of=model.spec.name)
