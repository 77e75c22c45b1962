"""Learners that come and go while examples arrive: every show and click counts once.

Real processes on the real Kafka and Valkey. One is killed, one is asked to leave, and others
take over their partitions. Then the counters of the rows are compared with the events.
"""

import random
from collections.abc import Callable
from pathlib import Path

from headrace.deploy.reports.observer import copy_rows
from tests.deploy.learners.crew import BUCKETS, crew
from tests.deploy.learners.learned_model import LearnedModel, counts_of


def check_counts(model: LearnedModel) -> None:
    with model.store() as store:
        assert counts_of(copy_rows(store).everything().existing(), model.spec) == model.counts


def test_no_example_is_lost_or_counted_twice_when_one_learner_dies_and_one_leaves(
    kafka: str, valkey: str, tmp_path: Path, fresh_name: Callable[[str], str]
) -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    model = LearnedModel(kafka, valkey, fresh_name("crew"), tmp_path, seed)
    model.make(BUCKETS)
    with crew(model, tmp_path, "batch") as learners:
        learners.join("a")
        learners.join("b")
        model.produce(900)
        learners.wait_until_more(4)
        learners.kill("a")  # with examples that are not pushed and pushes without an answer
        learners.join("a")  # the same name gets its partitions back at once
        model.produce(900)
        learners.wait_until_more(4)
        learners.leave("b")
        model.produce(300)
        model.wait_learned()
        learners.leave("a")
    check_counts(model)
