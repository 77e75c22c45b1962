"""Networks with long bags: better than the click rate in every window, and hardly slower.

Specs without the constants of `headrace suggest` lose against the click rate on the same log.
"""

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.bench.generated.contenders import FIRST, learn_ours, plain_text, spec_text
from tests.bench.generated.generated_logs import QUICK, entropy, log_loss, windows
from tests.bench.generated.log_generator import GeneratedLog, LogPlan, generate

NETWORKS = (
    "dcn_v2",
    *(
        pytest.param(each, marks=pytest.mark.long)
        for each in ("deepfm", "wide_and_deep", "field_weighted_fm")
    ),
)
PLAN = LogPlan(62, 0.1, (50, 2_000, 300, 20_000), 20, "none", 60.0, 5)
"""Bags of up to twenty items."""


class ComputedFloats(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the numbers that torch computes, forwards and backwards."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(
        self, function: Any, _types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        found = function(*args, **(kwargs or {}))
        tensors = found if isinstance(found, tuple | list) else (found,)
        self.count += sum(each.numel() for each in tensors if isinstance(each, torch.Tensor))
        return found


@pytest.fixture(scope="module")
def log() -> GeneratedLog:
    return generate(PLAN, 6_000)


def entropies(log: GeneratedLog, text: str) -> tuple[list[float], float, int]:
    """The normalized entropy of each window and of the whole, and the quarantined batches."""
    found = learn_ours(log, text)
    losses = log_loss(found.scores, log.labels)
    parts = [*windows(log.labels, QUICK), (FIRST, len(log))]
    each = [float(losses[a:b].mean()) / entropy(log.labels[a:b]) for a, b in parts]
    return each[:-1], each[-1], found.held_back


@pytest.mark.parametrize("network", NETWORKS)
def test_suggested_constants_beat_the_click_rate_in_every_window_and_quarantine_nothing(
    network: str, log: GeneratedLog
) -> None:
    text = spec_text(log, "dcn_v2").replace('"dcn_v2"', f'"{network}"')
    each, whole, held_back = entropies(log, text)
    assert len(each) > 2
    assert max(each) < 1.0, each
    assert held_back == 0
    plain = plain_text(log, "dcn_v2").replace('"dcn_v2"', f'"{network}"')
    assert whole < 1.0 < entropies(log, plain)[1], "the constants make the difference"


@pytest.mark.parametrize("network", ["deepfm", pytest.param("dcn_v2", marks=pytest.mark.long)])
def test_bags_of_twenty_items_take_torch_at_most_half_as_much_again_as_single_items(
    network: str, log: GeneratedLog
) -> None:
    sizes = np.diff(log.bag_offsets)
    kept = np.minimum(sizes, 1)
    firsts = log.bag_ids[log.bag_offsets[:-1][kept == 1]]
    bags = np.concatenate(([0], np.cumsum(kept))), firsts
    short = GeneratedLog(
        log.plan, log.ids, *bags, log.requests, log.shown_ms, log.click_ms, log.truth
    )
    assert sizes.max() == PLAN.bag_items
    text = spec_text(log, network)
    counts = []
    for each in (log, short):
        with ComputedFloats() as computed:
            learn_ours(each, text)
        counts.append(computed.count)
    assert counts[1] > 1_000 * len(log), "torch computes something"
    assert counts[0] < 1.5 * counts[1], "only the sum of the bag takes more"
