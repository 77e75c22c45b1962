"""The section `[calibration]`: a layer behind the model, learned online."""

from typing import Annotated

from msgspec import Meta, Struct

from headrace.ingest.features.spec_sections import Variant, Variants

CALIBRATION_NUMBER = 1002
"""Field number of the rows of the layer."""
PLATT, ISOTONIC, SHRINKAGE = "platt", "isotonic", "shrinkage"


class Calibration(Struct, frozen=True):
    """The section `[calibration]`."""

    kind: str = PLATT
    """The form of the layer."""
    alpha: Annotated[float, Meta(ge=1e-6, le=1.0)] = 0.0005
    """Learning rate. The layer forgets outcomes after about 1 / (`alpha` p (1 - p)) examples, per
    knot for `isotonic`. If a tenth is clicked, this is 20,000 for `platt` and 1,000 for `isotonic`.
    `shrinkage` forgets them after 1 / `alpha` clicks. A larger rate makes the layer noisier."""


CALIBRATION = Variants(
    Calibration,
    "kind",
    {
        PLATT: Variant("Two numbers, scale and shift.", ("alpha",)),
        ISOTONIC: Variant(
            "A number for each of 25 log-odds, from -8 to 4.", ("alpha",), defaults={"alpha": 0.01}
        ),
        SHRINKAGE: Variant(
            "A mixture of the model, the click rate, and the middle of both.",
            ("alpha",),
            defaults={"alpha": 0.005},
        ),
    },
)
