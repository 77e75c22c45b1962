"""The generations of a model's buckets, and the rule by which a reshard replaces the current one.

Each reshard fills buckets of a new generation beside the current ones, under a token, and then
makes them current. The token has a time to live, so a process that pauses may lose it while another
reshard begins. Three rules keep it harmless. A replacement of the generations compares both the
token and the generations it was made from, in one atomic operation (`may_replace`). Each attempt
has a number of its own, so late calls of an earlier attempt reach keys that never become current.
And an attempt removes the buckets of an earlier one only after its own plan has replaced the
earlier plan: before that, the earlier one may still switch.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from headrace.pserver.errors import BucketExists, ModelExists

TOKEN_MS = 60_000
"""Life of the token of a reshard. Each bucket renews it, and a bucket takes seconds."""


class BucketGeneration(msgspec.Struct, frozen=True):
    """The buckets of one generation."""

    generation: int
    buckets: int
    sub_hashes: int


class Generations(NamedTuple):
    """All generations of a model that may have buckets."""

    current: BucketGeneration
    planned: BucketGeneration | None = None
    """Buckets that a reshard fills, or that an interrupted one left."""
    superseded: BucketGeneration | None = None
    """Buckets before the last reshard, until they are removed."""
    abandoned: tuple[BucketGeneration, ...] = ()
    """Buckets that interrupted reshards left; the planned reshard removes them before it fills."""

    @property
    def known(self) -> tuple[BucketGeneration, ...]:
        """All of them, the current buckets last."""
        some = (*self.abandoned, self.planned, self.superseded)
        return (*(each for each in some if each is not None), self.current)

    def plan(self, buckets: int, sub_hashes: int) -> Generations:
        """Plan a reshard under a number that no attempt had. Raises ModelExists."""
        if self.superseded is not None:
            raise ModelExists(
                f"expected no buckets of an earlier reshard, got {self.superseded.buckets}: remove "
                "them with `headrace pserver reshard --remove-old`, once every process has "
                "started again"
            )
        number = max(each.generation for each in self.known) + 1
        planned = BucketGeneration(number, buckets, sub_hashes)
        left = () if self.planned is None else (self.planned,)
        return self._replace(planned=planned, abandoned=self.abandoned + left)

    def switch(self, planned: BucketGeneration | None) -> Generations:
        """Make the planned buckets current. Raises BucketExists if others are planned."""
        if planned is None or self.planned != planned:
            raise BucketExists(
                f"expected the planned buckets {planned}, got {self.planned}: another reshard "
                "began or ended meanwhile. Run it again if the model still needs it"
            )
        return Generations(planned, superseded=self.current)

    def without_superseded(self) -> Generations:
        """Forget the buckets before the last reshard."""
        return self._replace(superseded=None)


def may_replace(found: object, expected: object, holder: str | None, token: str) -> bool:
    """Return whether a store may replace its generations. functions.lua has this rule as `reshape`.

    found, expected: what the store has, and what the new value was made from. token: of the reshard
    that replaces them; empty for other changes. holder: the token that the store has.
    """
    return found == expected and (not token or holder == token)
