"""The label policy of a model: when an impression becomes an example, and with which label.

When an impression is shown, its click is not known yet. `immediate` makes an example without a
click at once, and a second one at the click, so new items reach the model within a second. `window`
waits until the label window closes, so every example has its final label, one window late. The
joiner applies the policy (`ingest/joiner/core/rules.py`). A click after the window is late under
both policies.
"""

import math
from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta

from headrace.ingest.features.spec_sections import expected

_WEEK_S = 7 * 86_400


class Policy(StrEnum):
    """When an impression becomes an example, and with which label."""

    IMMEDIATE = "immediate"
    """At once with label 0; a later click is a second example with label 1."""
    WINDOW = "window"
    """Once, when its window closes, with the label known by then."""


class LabelPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The section `[label]`: how clicks become labels."""

    # immediate by default, because headrace exists for freshness
    policy: Policy = Policy.IMMEDIATE
    """When an impression becomes an example."""
    window_s: Annotated[float, Meta(gt=0, le=_WEEK_S), expected("above 0, up to a week")] = 1800.0
    """Seconds after the impression in which a click counts. A later click is late: it is counted
    and not learned."""

    @property
    def window_ms(self) -> int:
        """The window in milliseconds, at least one."""
        return max(1, math.floor(self.window_s * 1000))

    @property
    def delay_ms(self) -> int:
        """Event time from an impression to its example."""
        return self.window_ms if self.policy is Policy.WINDOW else 0
