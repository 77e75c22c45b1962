"""Two learners started by torchrun step the layers of a deep model together, on real servers."""

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from headrace.deploy.local.services.ports import free_port
from headrace.deploy.local.services.waiting import wait_until
from headrace.deploy.reports.observer import copy_rows
from headrace.learner.spec.model_spec import parse_spec
from tests.deploy.command import headrace
from tests.deploy.learners.learned_model import LearnedModel, counts_of
from tests.learner.models.deep.joining import spec_of

BUCKETS = 4
DEADLINE_S = 90.0
DENSE = 1001


@pytest.mark.long
def test_a_killed_synchronous_learner_ends_its_group_and_every_example_counts_once(
    kafka: str, valkey: str, tmp_path: Path, fresh_name: Callable[[str], str]
) -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    model = joint_model(kafka, valkey, fresh_name, tmp_path, seed)
    alone = headrace("learner", "run", "--model", str(model.path), "--redis", valkey)
    assert alone.returncode == 2
    assert "synchronous = true: expected a rank" in alone.stderr

    command = [
        sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2",
        "--max-restarts", "20", "--master-port", str(free_port()), "-m", "headrace",
        "learner", "run", "--model", str(model.path), "--redis", valkey, "--kafka", kafka,
    ]  # fmt: skip
    with (tmp_path / "learners.log").open("wb") as log:
        group = subprocess.Popen(
            command, stdout=log, stderr=log, env={**os.environ, "OMP_NUM_THREADS": "1"}
        )
    try:
        model.produce(300)
        with model.store() as store:

            def begun() -> bool:
                return any(sum(a.marks.values()) for a in store.marks(range(BUCKETS)))  # type: ignore[union-attr]

            assert wait_until(begun, DEADLINE_S, lambda: group.poll() is None), log_of(tmp_path)
        learners = psutil.Process(group.pid).children()
        assert len(learners) == 2
        learners[1].kill()
        model.produce(300)
        try:
            model.wait_learned()
        except AssertionError:
            print(log_of(tmp_path))
            raise
        group.send_signal(signal.SIGTERM)
        group.wait(DEADLINE_S)
    finally:
        for each in [*psutil.Process().children(recursive=True)]:
            if each.pid == group.pid or group.pid in [p.pid for p in each.parents()]:
                each.kill()
        group.wait()
    with model.store() as store:
        rows = copy_rows(store).everything().existing()
    assert counts_of(rows, model.spec) == model.counts
    impressions = sum(
        shows for row, (shows, _) in model.counts.items() if row & 1023 == 1
    )  # of the field `item`
    chunks = rows.ids & 1023 == DENSE
    assert chunks.any()
    assert set(rows.shows[chunks].tolist()) == {impressions}


def joint_model(
    kafka: str, valkey: str, fresh_name: Callable[[str], str], folder: Path, seed: int
) -> LearnedModel:
    """A model whose layers are stepped together, made in the store."""
    model = LearnedModel(kafka, valkey, fresh_name("joint"), folder, seed)
    text = spec_of(16).text.replace('policy = "window"', 'policy = "immediate"')
    model.spec = parse_spec(text.replace('"test"', f'"{model.spec.name}"'), "joint.toml")
    model.path = model.write_spec(model.spec)
    model.make(BUCKETS)
    model.failures = []
    return model


def log_of(folder: Path) -> str:
    return (folder / "learners.log").read_text()[-6000:]
