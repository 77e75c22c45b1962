"""A larger model begun with a smaller one's snapshot, from the command line, with real servers."""

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.deploy.cli.pserver.pserver_restore import check_joined, sub_hashes_of
from headrace.deploy.reports.observer import copy_rows
from headrace.learner.errors import RecoveryRefused
from headrace.learner.spec.model_spec import parse_spec
from tests.deploy.in_process import Commands
from tests.deploy.learners.learned_model import LearnedModel, counts_of

BUCKETS = 4
MOMENT_MS = 1_795_000_000_000
FIELD = '\n[fields.tag_count]\nnumber = 90\ntransform = "log_bucket"\nsource = "size"\n'


def test_a_warm_started_model_continues_after_the_examples_of_the_snapshot(
    kafka: str, valkey: str, tmp_path: Path, fresh_name: Callable[[str], str], headrace: Commands
) -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    small = LearnedModel(kafka, valkey, fresh_name("small"), tmp_path, seed)
    small.make(BUCKETS)
    small.produce(120)
    small.learn()
    storage = str(tmp_path / "shelf")
    taken = headrace("pserver", "snapshot", storage, "--model", str(small.path), "--redis", valkey)
    assert taken.code == 0, taken.err

    large = LearnedModel(kafka, valkey, fresh_name("large"), tmp_path, seed)
    text = small.spec.text.replace(f'"{small.spec.name}"', f'"{large.spec.name}"') + FIELD
    large.spec = parse_spec(text, "large.toml")
    large.path = large.write_spec(large.spec)
    # as its joiner makes them of the oldest events, which the small one knows
    large.produce(100, earlier_ms=2 * 3_600_000)
    large.shows, large.clicks = Counter(small.shows), Counter(small.clicks)

    def restore(*more: str) -> tuple[int, str]:
        done = headrace(
            "pserver", "restore", storage, "--model", str(small.path), "--redis", valkey,
            "--as", str(large.path), *more,
        )  # fmt: skip
        return done.code, done.out + done.err

    status, said = restore()
    assert status == 2
    assert "differ in [fields], [label] or [examples]" in said
    status, said = restore("--warm", "--kafka", kafka)
    assert status == 0, said
    assert f"read the examples of {large.spec.name} after those it has learned" in said
    assert "without rows: tag_count" in said

    large.produce(80)
    large.learn()
    with large.store() as store:
        found = counts_of(copy_rows(store).everything().existing(), large.spec)
    assert found == large.counts


@pytest.mark.parametrize(
    ("had", "before", "buckets", "expected"),
    [
        (256, 64, None, 256),
        (256, 64, 64, 256),
        (8, 8, 8, 8),
        (256, 64, 8, 2048),  # fewer buckets: as many rows in each sub-hash as before
        (1024, 64, 32, 2048),
        (1024, 64, 8, 4096),  # the most
        (256, 64, 128, 256),
        (8, 8, 32, 8),
        (4096, 1, 64, 256),  # more buckets: not more than their number wants
        (256, 64, 12, 1024),  # refused afterwards, but not for this
    ],
)
def test_a_restore_keeps_sub_hashes_unless_the_bucket_count_changes(
    had: int, before: int, buckets: int | None, expected: int
) -> None:
    manifest: Any = SimpleNamespace(sub_hashes=had, shape=SimpleNamespace(buckets=before))
    settings: Any = SimpleNamespace(buckets=buckets)
    assert sub_hashes_of(manifest, settings) == expected


def test_a_warm_start_is_refused_while_the_joiner_is_behind() -> None:
    check_joined("demo2", "0, 1", MOMENT_MS, 0)
    with pytest.raises(RecoveryRefused, match=r"demo2: .*partitions 0, 1.*972,030 events behind"):
        check_joined("demo2", "0, 1", MOMENT_MS, 972_030)
