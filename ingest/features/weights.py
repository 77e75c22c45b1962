"""How much an example counts: a field of the impression, and down-sampling of negatives.

`[examples]` may name a raw field whose number is the weight of the impression's examples: one of
weight 2 moves a model as two would. Absent is 1. What is no number from 0 to `MOST` makes a dead
letter of the impression: taken as 1 it would be learned with a weight that nobody gave it, and
nobody would hear of it.

It may say as well that of the negative examples a part `negative_rate` is kept, for the others to
cost nothing. Each that is kept weighs 1 / rate, so that every sum over examples, the gradient and
the loss among them, has the expectation it would have without sampling (Horvitz and Thompson, "A
generalization of sampling without replacement from a finite universe", JASA 1952; for logistic
regression on clicks McMahan et al., "Ad click prediction: a view from the trenches", KDD 2013,
section 4.5, which keeps whole queries). Predictions so stay probabilities of the whole stream.
*Refused:* an offset of the log-odds by log(rate) (He et al., ADKDD 2014, section 6.3): it corrects
a model that was fitted to the sample, which under `immediate` is not the one that is learned, and
it has to be known to whoever predicts.

Whether a negative is kept depends on the id of its impression and on nothing else. So who joins the
same events again, after a kill or under another name, keeps the same ones.

Under `window` the negatives are impressions that closed without a click. Under `immediate` every
impression is first shown as a negative, before anybody knows. The draw knows no more of what will
come than anybody: what is dropped is a fair sample of what will be clicked and what will not, and
what is kept stands for it. So a click is learned whether its impression was kept or not, once, with
the weight 1 (times that of its field): each click is one, and none was dropped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from headrace.ingest.features.spec_text import SpecText

MOST = 1e6
"""The greatest weight: a million copies of one example would be the model."""
LEAST_RATE = 1e-4
KEYS = ("weight", "negative_rate")
"""Of the section `[examples]`."""


@dataclass(frozen=True, slots=True)
class ExampleWeights:
    """What examples count as."""

    source: str = ""
    """Raw event field; empty: every impression weighs 1."""
    negative_rate: float = 1.0
    """Part of the negative examples that is kept."""

    @property
    def declared(self) -> bool:
        """Whether any example may weigh other than 1: then examples carry their weights."""
        return bool(self.source) or self.sampling

    @property
    def sampling(self) -> bool:
        """Whether negatives are dropped."""
        return self.negative_rate < 1.0

    @property
    def keep_below(self) -> int:
        """Of the 2^64 draws, the last that is kept."""
        return min(round(self.negative_rate * 2**64), 2**64 - 1)

    def agreed(self) -> dict[str, object]:
        """Return what the fingerprint is of; nothing where nothing is declared."""
        found: dict[str, object] = {"weight": self.source} if self.source else {}
        return found | ({"negative_rate": self.negative_rate} if self.sampling else {})

    def of_kept(
        self, labels: npt.NDArray[np.uint8], own: npt.NDArray[np.float32]
    ) -> npt.NDArray[np.float32]:
        """Return the weights of examples that were kept; own: those of their impressions."""
        weights = own
        if self.sampling:
            weights = own * np.where(labels == 0, np.float32(1.0 / self.negative_rate), 1.0)
        return weights.astype(np.float32)


def parse_weights(table: Mapping[str, object], where: SpecText) -> ExampleWeights:
    """Return what `[examples]` says of weights. Raises SpecError."""
    source, rate = table.get("weight", ""), table.get("negative_rate", 1.0)
    if "weight" in table and (not isinstance(source, str) or not source):
        raise where.error(("examples", "weight"), "weight naming a raw event field", repr(source))
    if type(rate) not in (int, float) or not LEAST_RATE <= cast("float", rate) <= 1.0:
        expected = f"negative_rate from {LEAST_RATE:g} to 1"
        raise where.error(("examples", "negative_rate"), expected, repr(rate))
    return ExampleWeights(cast("str", source), float(cast("float", rate)))


def weights_of(
    absent: npt.NDArray[np.bool_], reals: npt.NDArray[np.float64]
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_]]:
    """Return the weights of impressions, and which are none; reals: NaN where there is no number.

    Those that are none are 1, too.
    """
    bad = ~(absent | ((reals >= 0.0) & (reals <= MOST)))
    return np.where(absent | bad, 1.0, reals).astype(np.float32), bad
