"""Splits the traffic of an alias among models, by weight.

    news=95 news-2=5                 each request by its request_id
    news=95 news-2=5 by user_id      all requests of a user to the same model

An alias points at a model or at such a split. Each model of the split is an arm. Weights are
relative: an arm's share is its weight divided by the sum, so 95 and 5 equal 19 and 1. Commas may
replace the spaces.

The split is a weighted rendezvous hash. Each arm draws a uniform number u from the hash of its name
and the key, and the arm with the least -log(u) / weight answers. These are exponential times with
the weights as rates, so each arm comes first with the probability weight / sum.

- The same key gets the same arm, on every server, after every restart, in any order of the arms.
- If one weight grows, keys move to its arm only. If it shrinks, keys move away from its arm only.
  This holds for arms that are added and removed, too.

The refused alternative gives each arm ranges of the hash, and moves bounds when weights change. The
ranges depend on all earlier changes, so two servers with equal weights could answer the same user
with different models.
"""

import math
import re
from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b

import msgspec

from headrace.serving.errors import BadAlias

REQUEST_ID = "request_id"
"""Key of a split that names none."""
MOST_ARMS = 16
"""Bounds the hashes per request, at about a microsecond each."""
_MOST_SPLITS = 256
_MOST_WEIGHT = 1e9
_FORM = "MODEL=WEIGHT MODEL=WEIGHT, then optionally: by FIELD"
_FIELD = re.compile(r"\S{1,200}").fullmatch


class TrafficSplit(msgspec.Struct, frozen=True):
    """Models with weights, and the key by which requests are split."""

    weights: tuple[tuple[str, float], ...]
    """Model and weight, the largest weight first."""
    key: str = REQUEST_ID

    @property
    def models(self) -> tuple[str, ...]:
        """The models, the one with the largest weight first."""
        return tuple(model for model, _ in self.weights)

    def choose(self, key: bytes) -> str:
        """Return the model for the value of a key."""
        return min(self.weights, key=lambda each: _exponential(each[0], key) / each[1])[0]

    def __str__(self) -> str:
        """Return the text that `split_of` reads. Equal splits have equal texts."""
        arms = " ".join(f"{model}={weight!r}".removesuffix(".0") for model, weight in self.weights)
        return arms if self.key == REQUEST_ID else f"{arms} by {self.key}"


def _exponential(model: str, key: bytes) -> float:
    drawn = blake2b(b"%b\0%b" % (model.encode(), key), digest_size=8).digest()
    # 53 bits, as many as a float has: never 0 or 1
    return -math.log(((int.from_bytes(drawn, "little") >> 12) + 0.5) * 2.0**-52)


@lru_cache(_MOST_SPLITS)
def split_of(text: str) -> TrafficSplit | None:
    """Read the target of an alias; None: a single model. Raises BadAlias.

    A single model with a weight is that model.
    """
    words = text.replace(",", " ").split()
    if "=" not in text and len(words) < 2:
        return None
    key = REQUEST_ID
    if len(words) > 2 and words[-2] == "by":
        key = words[-1]
        del words[-2:]
        if not _FIELD(key):
            raise BadAlias(f"expected {_FORM}, got a field of {len(key)} characters")
    return _split(text, words, key)


def canonical(text: str) -> str:
    """Return the one way to write the target of an alias. Raises BadAlias."""
    split = split_of(text)
    if split is None:
        return text
    return split.models[0] if len(split.weights) == 1 else str(split)


def models_of(text: str) -> tuple[str, ...]:
    """Return the models of the target of an alias. Raises BadAlias."""
    split = split_of(text)
    return (text,) if split is None else split.models


def _split(text: str, words: Sequence[str], key: str) -> TrafficSplit:
    weights: dict[str, float] = {}
    for word in words:
        model, equals, given = word.partition("=")
        if not (model and equals):
            raise BadAlias(f"expected {_FORM}, got {text!r}")
        if model in weights:
            raise BadAlias(f"expected each model once, got {model} twice in {text!r}")
        weights[model] = _weight(model, given)
    if len(weights) > MOST_ARMS:
        raise BadAlias(f"expected at most {MOST_ARMS} models, got {len(weights)}")
    ordered = sorted(weights.items(), key=lambda each: (-each[1], each[0]))
    return TrafficSplit(tuple(ordered), key)


def _weight(model: str, given: str) -> float:
    try:
        weight = float(given)
    except ValueError:
        weight = math.nan
    if not 1 / _MOST_WEIGHT <= weight <= _MOST_WEIGHT:
        raise BadAlias(
            f"weight of {model}: expected a number above 0, up to {_MOST_WEIGHT:.0f}, got {given!r}"
            "; leave out a model that gets no requests"
        )
    return weight
