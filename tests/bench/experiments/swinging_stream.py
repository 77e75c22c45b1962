"""The stream on which searches compete: five fields of ids and a click rate that swings.

The level of the log-odds is a sine of three periods, common to all arms. An arm that reads a
stretch of few clicks has a low log loss, however it learns. Effects of ids are the same for every
seed; examples, and the phase of the level, are drawn by it.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from headrace.ingest.examples.batch import Examples
from headrace.learner.spec.model_spec import ModelSpec, parse_spec
from tests.bench.learner.stream import Stream

VALUES = (10, 100, 1000, 10_000, 50_000)
"""Possible values of each field."""
_BASE, _SWING, _EFFECT = -2.5, 1.0, 0.5
"""Log-odds of the middle level, half of the swing, and the standard deviation of an id's effect."""
_PERIODS = 3
_SPEC = """
[model]
name = "control"
[label]
policy = "window"
{fields}
[optimizer]
name = "ftrl"
alpha = {alpha}
beta = 1.0
l1 = 0.0
l2 = 1.0
"""
L2 = 1.0


def swinging_spec(alpha: float) -> ModelSpec:
    """Return logistic regression over the stream with a learning rate."""
    fields = "".join(
        f'[fields.f{k}]\nnumber = {k}\ntransform = "id"\n' for k in range(1, len(VALUES) + 1)
    )
    return parse_spec(_SPEC.format(fields=fields, alpha=alpha), "swinging.toml")


def swinging_stream(examples: int, seed: int) -> Stream:
    """Draw the stream."""
    random, truth = np.random.default_rng(seed), np.random.default_rng(0)
    place = np.arange(examples) / examples + random.random()
    log_odds = _BASE + _SWING * np.sin(2.0 * np.pi * _PERIODS * place)
    ranks = np.empty((examples, len(VALUES)), np.int64)
    for k, values in enumerate(VALUES):
        # log-uniform: as many examples have ranks 1 to 9 as 10 to 99
        ranks[:, k] = values ** random.random(examples)
        log_odds += truth.normal(0.0, _EFFECT, values + 1)[ranks[:, k]]
    chance = 1.0 / (1.0 + np.exp(-log_odds))
    labels = (random.random(examples) < chance).astype(np.uint8)
    numbers: npt.NDArray[np.float32] = np.empty((examples, 0), np.float32)
    return Stream(np.array(VALUES), ranks, numbers, chance, labels)


def dicts_of(blocks: Sequence[Examples]) -> Iterator[tuple[dict[int, float], bool]]:
    """Yield examples as River takes them. The ids of different fields differ."""
    for block in blocks:
        rows = block.features.ids.tolist()
        for row, label in zip(rows, block.labels.tolist(), strict=True):
            yield dict.fromkeys(row, 1.0), bool(label)


def places_of(blocks: Sequence[Examples], fields: int) -> Iterator[tuple[list[int], bool]]:
    """Yield the ids of the first fields in 31 bits, as features of Vowpal Wabbit."""
    for block in blocks:
        rows = (block.features.ids[:, :fields] & np.uint64(0x7FFFFFFF)).tolist()
        for row, label in zip(rows, block.labels.tolist(), strict=True):
            yield row, bool(label)
