"""Faults of buckets: they go back in time, are lost and restored, or do not answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.simulation.witness import Memory
    from tests.simulation.world import World

_MEMORIES = 8
"""Of a bucket."""


class Failovers:
    """The buckets as they were, and the faults that bring that back."""

    def __init__(self, world: World) -> None:
        self._world, self._plan = world, world.plan
        self.memories: dict[int, list[Memory]] = {b: [] for b in range(world.plan.buckets)}
        """The oldest first: what failovers and operators bring back."""
        if world.plan.reverts or world.plan.losses:
            world.store.changing = self._remember

    def _remember(self, bucket: int) -> None:
        if self._world.dice.random() < self._plan.remembered:
            memories = self.memories[bucket]
            memories.append(self._world.store.remember(bucket))
            del memories[:-_MEMORIES]

    def go_back(self) -> None:
        """Fail over: a bucket goes back to what a lagging follower had of its present history."""
        world, dice = self._world, self._world.dice
        bucket = dice.randrange(self._plan.buckets)
        if bucket in world.store.missing():
            return
        now = world.store.state(bucket).standing
        present = [memory for memory in self.memories[bucket] if not memory.abandoned]
        lagging = [memory for memory in present if memory.state.standing != now]
        if not lagging:
            return
        memory = lagging[-1]  # followers mostly lag by a little: by folds alone, or by pushes too
        pushed = [memory for memory in lagging if memory.state.standing[0] < now[0]]
        if pushed and dice.random() < 0.5:
            memory = pushed[-1]
        while memory is not present[0] and dice.random() < self._plan.farther:
            memory = present[present.index(memory) - 1]
        world.tally["failovers that lost writes"] += 1
        world.tally["of them while pushes flew"] += any(p.flying for p in world.learners)
        world.tally["of them while a keeper was at work"] += any(k.running for k in world.keepers)
        world.store.go_back(memory)
        # what the bucket was later belongs to a history that is no more
        for later in present[present.index(memory) + 1 :]:
            later.abandoned = True

    def lose(self) -> None:
        """A bucket comes back empty."""
        world = self._world
        bucket = world.dice.randrange(self._plan.buckets)
        if bucket not in world.store.missing():
            world.tally["buckets lost"] += 1
            world.store.lose(bucket)
            for memory in self.memories[bucket]:
                memory.abandoned = True

    def restore(self) -> None:
        """Restore what is lost, each bucket from a snapshot or empty."""
        world = self._world
        for bucket in world.store.missing():
            memory = world.dice.choice([*self.memories[bucket], None])
            world.tally["buckets restored" if memory else "buckets begun anew"] += 1
            world.store.restore(bucket, memory)

    def fall_silent(self) -> None:
        """A bucket does not answer until it comes back."""
        self._world.tally["buckets that fell silent"] += 1
        self._world.network.silent.add(self._world.dice.randrange(self._plan.buckets))

    def come_back(self) -> None:
        """All buckets answer again."""
        self._world.network.silent.clear()
