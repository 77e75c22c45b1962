"""Explores the models with few faults, and with each check of the protocols removed."""

from typing import Any, NamedTuple

import pytest

from tests.exploration.models import MODELS
from tests.exploration.reshard_model import ReshardModel
from tests.exploration.search import Model, explore
from tests.exploration.store_model import StoreModel
from tests.simulation.mutant import Mutant

PUSHES = StoreModel("pushes", buckets=2, keepers=0)
KEEPERS = StoreModel("keepers", buckets=1, keepers=2)
_FENCE = "headrace.pserver.memory_store:refusal_of"
_CHAIN = "headrace.pserver.replica.log_chain"
_GENERATIONS = "headrace.pserver.bucket_generations"


class Removed(NamedTuple):
    """A check of the product, and the model that breaks without it."""

    mutant: Mutant
    model: Model[Any]
    faults: int


def removed(model: Model[Any], faults: int, name: str, where: str, check: str, instead: str) -> Any:
    return pytest.param(Removed(Mutant(name, where, check, instead), model, faults), id=name)


CHECKS = [
    removed(PUSHES, 1, "push fence", "headrace.pserver.push_fence:passes_fence",
            "marks.get(span.source, 0) == span.start", "True"),
    removed(PUSHES, 1, "marks that follow a push", "headrace.pserver.push_fence:marks_after",
            "span.stop for", "span.start for"),
    removed(PUSHES, 1, "cursors of each bucket", "headrace.learner.loop.cursors:Cursors.active",
            "self._cursors[source] <= offset", "self._cursors[source] >= 0"),
    removed(KEEPERS, 1, "fold count", _FENCE, "state.folds != folds", "False"),
    removed(KEEPERS, 2, "entry of this history", _FENCE,
            "known.get(named.version) != named.nonce", "False"),
    removed(KEEPERS, 1, "nonce of the head", f"{_CHAIN}:chain",
            " or (polled.version == version and polled.nonce != nonce)", ""),
    removed(KEEPERS, 1, "chain of nonces", f"{_CHAIN}:_links",
            " or entry.previous != nonce", ""),
    removed(ReshardModel(), 1, "shape that a reshard read", f"{_GENERATIONS}:may_replace",
            "found == expected", "True"),
    removed(ReshardModel(), 1, "shape and token of a reshard", f"{_GENERATIONS}:may_replace",
            "found == expected and (not token or holder == token)", "True"),
    removed(ReshardModel(), 2, "number of its own for each reshard",
            f"{_GENERATIONS}:Generations.plan",
            "max(each.generation for each in self.known) + 1", "self.current.generation + 1"),
]  # fmt: skip


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_no_order_of_events_with_a_fault_breaks_a_promise(model: Model[Any]) -> None:
    found = explore(model, 1)
    assert not found.broken, str(found)
    assert found.ends, "some runs end"


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_no_order_of_events_with_two_faults_breaks_a_promise(model: Model[Any]) -> None:
    found = explore(model, 2)
    print(found)
    assert not found.broken, str(found)


@pytest.mark.parametrize("check", CHECKS)
def test_the_exploration_notices_a_removed_check(check: Removed) -> None:
    with check.mutant.at_large():
        found = explore(check.model, check.faults)
    assert found.broken, str(found)


def test_a_promise_that_breaks_is_reported_with_the_shortest_way_to_it() -> None:
    mutant = Mutant("push fence", "headrace.pserver.push_fence:passes_fence",
                    "marks.get(span.source, 0) == span.start", "True")  # fmt: skip
    with mutant.at_large():
        report = str(explore(PUSHES, 1))
    assert "BROKEN: bucket 0 contains (0, 0)" in report
    assert "learner sends: bucket 0 [0, 1)" in report
