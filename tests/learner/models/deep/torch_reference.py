"""A deep model as a torch user would write it: embedding tables, one module, autograd, a loop.

Rows are `Coordinate`s, as in the other references; the network is the model's own module, trained
through ordinary parameters and a loss that autograd differentiates.
"""

import math
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import nn

from headrace.ingest.examples.batch import Examples, Kind
from headrace.learner.models.deep.networks.contract import NetworkBatch
from tests.learner.kernels.slow_optimizers import Coordinate
from tests.learner.models.slow_factorization import SlowFactorization
from tests.learner.models.slow_logistic import Row, Seen, mixed

_ALL = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_LAYERS = 0x2545F4914F6CDD1D


@dataclass
class TorchReference(SlowFactorization):
    """Mini-batches of a module that the test made; no bags but the last inputs of an example."""

    module: nn.Module | None = None
    layers: list[Coordinate] = field(default_factory=list)
    begun_layers: list[float] = field(default_factory=list)
    last_second: int = 0
    """Of the mini-batch before: layers decay from then on."""

    def begin(self) -> None:
        """Make the parameters what the definition says: Glorot's bounds, from hashes."""
        assert self.module is not None
        dense = self.spec.optimizers.dense
        assert dense is not None
        origin = mixed(_LAYERS ^ (self.spec.structure.seed * _GOLDEN & _ALL))
        at = 0
        for parameter in self.module.parameters():
            for _ in range(parameter.numel()):
                begun = 0.0
                if parameter.dim() == 2:
                    bound = math.sqrt(6.0 / (parameter.shape[0] + parameter.shape[1]))
                    draw = mixed(origin + (at + 1) * _GOLDEN & _ALL) >> 40
                    begun = (draw / 2**23 - 1.0) * bound
                self.begun_layers.append(begun)
                at += 1
        self.layers = [Coordinate(dense) for _ in range(at)]

    def layers_now(self) -> list[float]:
        """Return all parameters, one after the other in the module's order."""
        return [b + c.w for b, c in zip(self.begun_layers, self.layers, strict=True)]

    def _set_layers(self) -> None:
        assert self.module is not None
        at, now = 0, self.layers_now()
        for parameter in self.module.parameters():
            size = parameter.numel()
            parameter.data = torch.tensor(now[at : at + size]).view(parameter.shape)
            at += size

    def learn_batch(self, examples: Examples) -> list[float]:
        """Score a mini-batch, then learn it; NaN for clicks."""
        assert self.module is not None
        seen = []
        tables: dict[int, torch.Tensor] = {}
        before: dict[int, int] = {}
        for i in range(len(examples)):
            each = self.seen(examples, i, ())
            for row_id in each.reads:
                if row_id not in tables:
                    standing = self._standing(row_id, each.second)
                    tables[row_id] = torch.tensor(standing, requires_grad=True)
                    before[row_id] = self.rows.get(row_id, Row()).last_seen
            for row_id, _ in each.inputs:
                self.count(self.rows.setdefault(row_id, Row()), each)
            seen.append(each)
        self._decay(before, max(each.second for each in seen))
        self._set_layers()
        self.module.zero_grad()
        log_odds = self.module(self._batch(seen, tables))
        p = torch.sigmoid(log_odds.detach()).tolist()
        self._loss(seen, log_odds, p).backward()  # type: ignore[no-untyped-call]
        self._step(tables)
        clicked = [each.kind is Kind.CLICKED for each in seen]
        return [math.nan if click else q for click, q in zip(clicked, p, strict=True)]

    def _decay(self, before: dict[int, int], second: int) -> None:
        """Let time pass: of a row up to the last example that names it, of layers up to `second`.

        before: when the rows were last seen until this mini-batch.
        """
        for row_id, last_seen in before.items():
            for coordinate in self.coordinates.get(row_id, []):
                coordinate.decay(max(0, self.rows[row_id].last_seen - last_seen))
        for coordinate in self.layers:
            coordinate.decay(max(0, second - self.last_second) if self.last_second else 0)
        self.last_second = max(self.last_second, second)

    def _loss(self, seen: list[Seen], log_odds: torch.Tensor, p: list[float]) -> torch.Tensor:
        """Ktena et al. 2019: the cross entropy, weighed by detached importance."""
        loss = torch.zeros(())
        for each, y, q in zip(seen, log_odds, p, strict=True):
            f = min(q, 0.8)
            positive, negative = (1 + f, (1 - f) * (1 + f))
            if each.kind is Kind.CLOSED:
                positive = negative = 1.0
            entropy = torch.nn.functional.softplus(-y if each.label else y)
            loss = loss + (positive if each.label else negative) * entropy
        return loss

    def _step(self, tables: dict[int, torch.Tensor]) -> None:
        assert self.module is not None
        for row_id, table in tables.items():
            found = self.coordinates.setdefault(row_id, self._row(row_id))
            assert table.grad is not None
            for coordinate, gradient in zip(found, table.grad.tolist(), strict=True):
                coordinate.step(gradient)
        gradients = [
            each.grad.flatten() for each in self.module.parameters() if each.grad is not None
        ]
        for coordinate, gradient in zip(self.layers, torch.cat(gradients).tolist(), strict=True):
            coordinate.step(gradient)

    def _batch(self, seen: list[Seen], tables: dict[int, torch.Tensor]) -> NetworkBatch:
        numbers = {each.number: at for at, each in enumerate(self.spec.fields.bags)}
        read = [each.name == self.spec.structure.history for each in self.spec.fields.bags]
        wide, vectors, histories = [], [], []
        d = self.spec.structure.dimensions
        for each in seen:
            wide.append(torch.stack([tables[row][0] * x for row, (_, x) in _pairs(each)]).sum())
            fixed, bags, history = [], [torch.zeros(d) for _ in numbers], []
            for row, (row_id, x) in _pairs(each)[1:]:
                vector = tables[row][1:] * x
                bag = numbers.get(row_id & 1023)
                if bag is None:
                    fixed.append(vector)
                else:
                    bags[bag] = bags[bag] + vector
                    if read[bag]:
                        history.append(vector)
            vectors.append(torch.stack([*fixed, *bags]))
            histories.append(history)
        longest = max(map(len, histories), default=0)
        padded = [
            torch.stack([*each, *[torch.zeros(d)] * (longest - len(each))])
            if longest
            else torch.zeros(0, d)
            for each in histories
        ]
        there = np.array([[k < len(each) for k in range(longest)] for each in histories])
        present = torch.tensor(there.reshape(len(seen), longest))
        return NetworkBatch(torch.stack(wide), torch.stack(vectors), torch.stack(padded), present)


def _pairs(seen: Seen) -> list[tuple[int, tuple[int, float]]]:
    return list(zip(seen.reads, seen.inputs, strict=True))
