"""A mini-batch divided among devices is learned as on one, but for the order of sums.

The tolerance: scores within 1e-4 relative or 1e-5, rows within 1e-3 relative or 1e-4, as between
CUDA and the CPU (tests.learner.models.deep.test_devices).
"""

import multiprocessing
import os
import pickle
import signal
import threading
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="deep models are an extra: pip install headrace[deep]")

from collections.abc import Sequence

import torch
from torch.distributed import HashStore  # type: ignore[attr-defined]

from headrace.learner.errors import DevicesLost
from headrace.learner.models.deep.batch_tensors import BatchParts
from headrace.learner.models.deep.deep_model import DeepModel
from headrace.learner.models.deep.device_group import DeviceGroup, cut_shares, serve_shares
from headrace.learner.models.deep.device_module import DeviceModule
from headrace.learner.models.deep.passes import Share
from headrace.learner.models.deep.process_group import GroupConfig, ProcessGroup
from tests.learner.models.deep.deep_architectures import LINES, check_equal, learned, spec_with
from tests.learner.streams import random_examples


def start_threads(
    own: DeviceModule, made: Any, arrange: Any, devices: Sequence[torch.device]
) -> DeviceGroup:
    """Do what `start_group` does, with threads as processes."""
    store, pipes, size = HashStore(), [], len(devices)
    blob = pickle.dumps((made, arrange))

    def serve(rank: int, pipe: Any) -> None:
        (module, layers), arrangement = pickle.loads(blob)
        there = DeviceModule(module, layers, copied=rank == 1)
        together = ProcessGroup(store, GroupConfig(rank, size))
        serve_shares(pipe, there, arrangement, together)

    for rank in range(1, size):
        mine, theirs = multiprocessing.Pipe()
        threading.Thread(target=serve, args=(rank, theirs), daemon=True).start()
        pipes.append(mine)
    return DeviceGroup(own, arrange, ProcessGroup(store, GroupConfig(0, size)), pipes)


@pytest.mark.parametrize("architecture", LINES)
def test_three_devices_learn_what_one_learns(
    architecture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.learner.models.deep.deep_model.start_group", start_threads)
    check_equal(spec_with(architecture, "devices = 3"), spec_with(architecture, "devices = 1"))


def test_two_processes_learn_what_one_learns_and_the_loss_of_one_ends_the_learner() -> None:
    others = set(multiprocessing.active_children())
    bench = check_equal(spec_with("deepfm", "devices = 2"), spec_with("deepfm", "devices = 1"))
    assert isinstance(bench.model, DeepModel)
    [process] = set(multiprocessing.active_children()) - others
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join(60.0)
    examples = random_examples(np.random.default_rng(8), bench.spec, 20, closed=True)
    with pytest.raises(DevicesLost, match="a process for each device"):
        bench.learn(examples)


@pytest.mark.parametrize(("examples", "sizes"), [(5, [1, 2, 2]), (1, [0, 0, 1])])
def test_shares_are_consecutive_and_keep_the_items_of_their_bags(
    examples: int, sizes: list[int]
) -> None:
    lengths = np.array([2, 0, 1, 3, 0, 0, 1, 1, 0, 2])[: 2 * examples]  # with two bags each
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    items = torch.arange(float(offsets[-1])).reshape(-1, 1)
    vectors = torch.arange(2.0 * examples).reshape(examples, 2, 1)
    parts = BatchParts(torch.arange(float(examples)), vectors, items)
    shares = cut_shares(Share(parts, offsets, examples), 3)
    assert [each.examples for each in shares] == sizes
    for whole, cut in zip(parts, zip(*(each.parts for each in shares), strict=True), strict=True):
        assert torch.equal(torch.cat(cut), whole)
    np.testing.assert_array_equal(np.concatenate([np.diff(s.offsets) for s in shares]), lengths)


def test_a_process_of_a_fit_into_a_store_starts_no_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(multiprocessing.current_process()._config, "daemon", True)  # type: ignore[attr-defined]
    with pytest.raises(DevicesLost, match="use --workers instead"):
        learned(spec_with("deepfm", "devices = 2"))
