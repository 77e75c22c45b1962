"""A larger model begun with a smaller one's snapshot, from the command line, with real servers."""

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from headrace.deploy.reports.observer import copy_rows
from headrace.learner.spec.model_spec import parse_spec
from tests.deploy.in_process import Commands, headrace
from tests.deploy.learners.learned_model import LearnedModel, counts_of

__all__ = ["headrace"]

BUCKETS = 4
FIELD = '\n[fields.tag_count]\nnumber = 90\ntransform = "log_bucket"\nsource = "size"\n'


def test_a_warm_started_model_continues_after_the_examples_of_the_snapshot(
    kafka: str,
    valkey: str,
    tmp_path: Path,
    fresh_name: Callable[[str], str],
    headrace: Commands,
) -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    small = LearnedModel(kafka, valkey, fresh_name("small"), tmp_path, seed)
    small.make(BUCKETS)
    small.produce(120)
    small.learn()
    shelf = str(tmp_path / "shelf")
    taken = headrace("pserver", "snapshot", shelf, "--model", str(small.path), "--redis", valkey)
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
            "pserver", "restore", shelf, "--model", str(small.path), "--redis", valkey,
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
