"""Weights of examples: a field of the impression, and down-sampling of negatives.

`[examples]` may name a raw field with the weight of the impression's examples. An example of weight
2 moves a model like two examples. A missing weight is 1. An impression with an invalid weight, not
a number from 0 to `MOST`, becomes a dead letter: learned with weight 1, the error would stay
unnoticed.

`[examples]` may also declare that only a share `negative_rate` of the negative examples is kept, to
save the cost of the others. Each kept negative weighs 1 / rate. So every sum over examples, among
them the gradient and the loss, has the expectation it would have without sampling (Horvitz and
Thompson, "A generalization of sampling without replacement from a finite universe", JASA 1952; for
logistic regression on clicks McMahan et al., "Ad click prediction: a view from the trenches", KDD
2013, section 4.5, which keeps whole queries). Predictions stay probabilities of the whole stream.
*Refused:* an offset of the log-odds by log(rate) (He et al., ADKDD 2014, section 6.3). It corrects
a model that was fitted to the sample, which is not the model learned under `immediate`, and every
predictor would have to apply it.

Whether a negative is kept depends on the id of its impression and on nothing else. A joiner that
joins the same events again, after a kill or under another name, keeps the same negatives.

Under `window` the negatives are impressions that closed without a click. Under `immediate` every
impression is first learned as a negative, before a click is possible. The draw is independent of
the click, so the kept impressions are a fair sample of all. A click is learned once, whether its
impression was kept or not, with weight 1 (times that of its field): clicks are never dropped.
"""

from typing import Annotated

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Meta

from headrace.ingest.features.spec_sections import expected

MOST = 1e6
"""The greatest weight: a million copies of one example would be the model."""


class ExampleWeights(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The weights of examples."""

    source: Annotated[str, Meta(min_length=1), expected("= the name of a raw event field")] = (
        msgspec.field(default="", name="weight")
    )
    """Raw field whose number, 0 to a million, is the weight of the impression's examples. A missing
    one is 1."""
    negative_rate: Annotated[float, Meta(ge=1e-4, le=1.0)] = 1.0
    """Share of the negative examples that is kept. Each then weighs 1 / rate."""

    @property
    def declared(self) -> bool:
        """Whether any example may weigh other than 1; examples then carry their weights."""
        return bool(self.source) or self.sampling

    @property
    def sampling(self) -> bool:
        """Whether negatives are dropped."""
        return self.negative_rate < 1.0

    @property
    def keep_below(self) -> int:
        """The last of the 2^64 draws that is kept."""
        return min(round(self.negative_rate * 2**64), 2**64 - 1)

    def agreed(self) -> dict[str, object]:
        """Return the part of the fingerprint; empty if no weights are declared."""
        agreed: dict[str, object] = {"weight": self.source} if self.source else {}
        return agreed | ({"negative_rate": self.negative_rate} if self.sampling else {})

    def of_kept(
        self, labels: npt.NDArray[np.uint8], own: npt.NDArray[np.float32]
    ) -> npt.NDArray[np.float32]:
        """Return the weights of kept examples. own: the weights of their impressions."""
        weights = own
        if self.sampling:
            weights = own * np.where(labels == 0, np.float32(1.0 / self.negative_rate), 1.0)
        return weights.astype(np.float32)


def weights_of(
    absent: npt.NDArray[np.bool_], reals: npt.NDArray[np.float64]
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_]]:
    """Return the weights of impressions, and which are invalid.

    reals: NaN where there is no number. An invalid weight is returned as 1.
    """
    bad = ~(absent | ((reals >= 0.0) & (reals <= MOST)))
    return np.where(absent | bad, 1.0, reals).astype(np.float32), bad
