"""River and a plain torch loop on the same stream, each set up as in its own manual."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np

from tests.bench.learner.alone import Learned

if TYPE_CHECKING:
    from tests.bench.learner.stream import Stream

_MINI_BATCH = 1024


def learn_river(stream: Stream) -> tuple[Learned, float]:
    """Return logistic regression with FTRL on dicts made off the clock, and seconds of learning.

    River's learning does not tell what it would have predicted, so a score is a call of its own;
    `seconds` has both, what is returned beside it is learning alone.
    """
    from river import linear_model, optim

    ftrl = optim.FTRLProximal(alpha=0.15, beta=1.0, l1=0.0, l2=1.0)
    model: Any = linear_model.LogisticRegression(optimizer=ftrl)
    number_names = [f"n{k}" for k in range(stream.numbers.shape[1])]
    examples: list[dict[str, float]] = []
    for ids, numbers in zip(stream.ranks.tolist(), stream.numbers.tolist(), strict=True):
        example = {f"c{k}={value}": 1.0 for k, value in enumerate(ids)}
        example.update(zip(number_names, numbers, strict=True))
        examples.append(example)
    labels = (stream.labels > 0).tolist()
    scores, learning = np.empty(len(stream)), 0.0
    began = time.perf_counter()
    for i, (example, label) in enumerate(zip(examples, labels, strict=True)):
        scores[i] = model.predict_proba_one(example)[True]
        since = time.perf_counter()
        model.learn_one(example, label)
        learning += time.perf_counter() - since
    return Learned(len(stream), time.perf_counter() - began, scores), learning


def learn_torch(stream: Stream) -> Learned:
    """Logistic regression in mini-batches, as tutorials write it: no id collides, Adagrad."""
    import torch
    from torch import nn

    # the default; saying so stops a warning
    torch.sparse.check_sparse_tensor_invariants.disable()  # type: ignore[no-untyped-call]
    ids = torch.from_numpy(stream.indexes)
    numbers = torch.from_numpy(stream.numbers)
    labels = torch.from_numpy(stream.labels.astype(np.float32))
    weights = nn.EmbeddingBag(stream.all_indexes, 1, mode="sum", sparse=True)
    nn.init.zeros_(weights.weight)
    # not nn.Linear, which warns where there are no numbers at all
    slopes, bias = nn.Parameter(torch.zeros(numbers.shape[1], 1)), nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.Adagrad([weights.weight, slopes, bias], lr=0.1)
    loss = nn.BCEWithLogitsLoss(reduction="mean")
    scores = []
    began = time.perf_counter()
    for begin in range(0, len(stream), _MINI_BATCH):
        rows = slice(begin, begin + _MINI_BATCH)
        log_odds = (weights(ids[rows]) + numbers[rows] @ slopes + bias).squeeze(1)
        scores.append(torch.sigmoid(log_odds.detach()).numpy())
        optimizer.zero_grad()
        loss(log_odds, labels[rows]).backward()
        optimizer.step()
    seconds = time.perf_counter() - began
    return Learned(len(stream), seconds, np.concatenate(scores).astype(np.float64))
