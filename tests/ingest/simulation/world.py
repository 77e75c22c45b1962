"""A world drawn from a seed: two producers, a broker and a joiner that is killed at times."""

import random
from typing import Any

import orjson

from headrace.ingest.examples.batch import Examples
from headrace.ingest.features.encoder import Encoder
from headrace.ingest.joiner.core.input import EventSide
from headrace.ingest.kafka.protocols import Record
from tests.ingest.joiner.partition import (
    T0_MS,
    WINDOW_MS,
    Partition,
    clicked,
    committed_checkpoint,
    records,
    tick,
)
from tests.ingest.simulation.reference import Made, Reference

_SIDES = (EventSide.IMPRESSIONS, EventSide.CLICKS)
_KINDS = ("shown", "clicked", "closed")
_YEARS_MS = 10**12
"""Milliseconds from events to their appends, for history."""
_JUMPS_MS = (5 * WINDOW_MS, 10**9, 1 << 31, (1 << 31) - WINDOW_MS, 1 << 32, (1 << 33) + 7)


class Broken(AssertionError):
    """The joiner broke a rule; the message has the seed and the difference."""


class _Producers:
    """The two streams of one partition."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        self.pace_ms = dice.choice((1, 8, 40))
        self.skew_ms = dice.choice((0, 0, -150, -30, 30, 90, 250))
        """Milliseconds by which the clock of clicks is ahead."""
        self.disorder_ms = dice.choice((0, 20, 90, 250))
        self.live = dice.random() < 0.4
        self.count = dice.choice((10, 60, 200))
        identities = dice.choice((2, 6, 40, 1000))
        self.identities = [f"i{n}" if n % 3 else f"æ{n}" for n in range(identities)]
        jumps = dice.choice((0, 0, 1, 3))
        self.jumps = [] if self.live else sorted(dice.sample(range(self.count), jumps))
        shown, clicks = self._happen()
        self.streams = [self._sent(shown), self._sent(clicks)]

    def _happen(self) -> tuple[list[tuple[int, bytes]], list[tuple[int, bytes]]]:
        """Return both streams in order of arrival, as (time of arrival, value)."""
        dice, now_ms = self.dice, 0
        shown: list[tuple[int, bytes]] = []
        clicks: list[tuple[int, bytes]] = []
        for i in range(self.count):
            now_ms += dice.randrange(2 * self.pace_ms)
            if i in self.jumps:
                now_ms += dice.choice(_JUMPS_MS)
            identity = dice.choice(self.identities)
            shown.append((now_ms, self._impression(identity, self._late(now_ms))))
            if dice.random() < 0.08:  # sent again
                shown.append((now_ms + dice.randrange(WINDOW_MS), shown[-1][1]))
            fate = dice.random()
            if fate < 0.45:
                after_ms = dice.choice((-60, 0, 5, 40, WINDOW_MS - 1, WINDOW_MS, WINDOW_MS + 1))
                at_ms = now_ms + after_ms
                value = clicked(identity, self._late(at_ms + self.skew_ms))
                arrival_ms = at_ms + dice.choice((0, 0, 3, 300))
                clicks += [(arrival_ms, value)] * (1 + (fate < 0.06))
            if fate > 0.96:
                ticking = dice.choice((shown, clicks))
                ahead_ms = dice.choice((0, 0, 150, 20 * WINDOW_MS))
                ticking.append((now_ms, tick(now_ms + ahead_ms)))
            if fate > 0.98:
                bad = dice.choice((b"", b"{", b'{"timestamp_ms":1}', b'{"impression_id":"x"}'))
                dice.choice((shown, clicks)).append((now_ms, bad))
        for stream in (shown, clicks):
            stream.sort(key=lambda sent: sent[0])
        return shown, clicks

    def _late(self, at_ms: int) -> int:
        return at_ms - self.dice.randrange(self.disorder_ms + 1) * (self.dice.random() < 0.3)

    def _impression(self, identity: str, at_ms: int) -> bytes:
        dice = self.dice
        event: dict[str, Any] = {
            "impression_id": identity,
            "timestamp_ms": T0_MS + at_ms,
            "user": dice.choice(("u", "ü", 7, 7.0, None)),
            "tags": dice.sample(["a", "bb", "ccc", None], dice.randrange(4)),
            "price": dice.choice((at_ms, 0.25, "12.5", "none", 1e300)),
            "words": dice.choice((None, "one", ["one", 2, True])),
            "device": dice.choice((None, "phone", 3, "a" * 200)),
            "request_id": dice.choice((None, "r", 17)),
        }
        return orjson.dumps({key: event[key] for key in dice.sample(list(event), len(event))})

    def _sent(self, stream: list[tuple[int, bytes]]) -> list[Record]:
        appends = [
            T0_MS + (max(1, at_ms + self.dice.randrange(-5, 30)) if self.live else _YEARS_MS)
            for at_ms, _ in stream
        ]
        return records(EventSide.IMPRESSIONS, [value for _, value in stream], appends)


class World:
    """The joiner and its reference, with the same input."""

    def __init__(self, seed: int, policy: str, wait_ms: int = 0) -> None:
        self.seed, self.policy, self.wait_ms = seed, policy, wait_ms
        self.dice = random.Random(f"{seed} {policy}")
        self.streams = _Producers(self.dice).streams
        self.partition = Partition(policy, wait_ms=wait_ms)
        closing = policy == "window"
        self.reference = Reference(WINDOW_MS, WINDOW_MS if closing else wait_ms, closing)
        self.encoder = Encoder(self.partition.fields)
        self.offered = [0, 0]
        self.at_end = [False, False]
        self.now_ms = 0
        self.made: list[tuple[object, ...]] = []

    def run(self) -> None:
        """Run the whole history, and check that nothing is left."""
        while self.offered != [len(stream) for stream in self.streams]:
            self._happen()
            self._compare()
        for _ in range(3):  # time passes, and all windows close
            for side in _SIDES:
                self._end(side)
            self.now_ms += 10 * WINDOW_MS
            self._advance()
            self._restart()
        self._compare()
        ends = self.partition.joiner.window.ends
        if ends.made_head[0] < ends.entry_tail[0]:
            raise Broken(f"seed {self.seed} {self.policy}: impressions are not examples yet")

    def _happen(self) -> None:
        step, side = self.dice.random(), self.dice.choice(_SIDES)
        if step < 0.4:
            begin = self.offered[side]
            end = min(len(self.streams[side]), begin + self.dice.randrange(1, 14))
            self.offered[side] = end
            self.partition.offer(side, self.streams[side][begin:end])
            self.reference.offer(side, self.streams[side][begin:end])
            if end > begin:
                self.at_end[side] = False
        elif step < 0.55:
            self._end(side)
        elif step < 0.65:
            self._restart()
        else:
            self.now_ms += self.dice.choice((0, 0, 3, 50, 500))
            self._advance()

    def _end(self, side: EventSide) -> None:
        self.at_end[side] = True
        self.partition.joiner.ended(side)
        self.reference.end(side)

    def _advance(self) -> None:
        limit = self.dice.choice((1, 5, 4096))
        while True:
            joined = self.partition.joiner.advance(self.now_ms, limit)
            self.made += _rows(joined.examples)
            self.partition.dead += joined.dead
            if not joined.taken and not len(joined.examples):
                break
        self.reference.advance(self.now_ms)

    def _restart(self) -> None:
        """Kill the joiner just after a commit; another one reads again from its rewind offsets."""
        checkpoint = committed_checkpoint(self.partition.joiner)
        dead = self.partition.dead
        self.partition = Partition(self.policy, wait_ms=self.wait_ms)
        self.partition.dead = dead
        self.partition.joiner.restore(checkpoint)
        left = {
            side: [r for r in self.streams[side][: self.offered[side]] if r.offset >= begin]
            for side, begin in (
                (EventSide.IMPRESSIONS, checkpoint.shown.rewind),
                (EventSide.CLICKS, checkpoint.clicked.rewind),
            )
        }
        while any(left.values()):
            side = self.dice.choice([side for side in _SIDES if left[side]])
            size = self.dice.randrange(1, 20)
            self.partition.offer(side, left[side][:size])
            left[side] = left[side][size:]
            if self.dice.random() < 0.3:
                self.partition.joiner.advance(self.now_ms, limit=0)  # takes only what is read again
        for side in _SIDES:
            if self.at_end[side]:
                self.partition.joiner.ended(side)
        self.partition.joiner.advance(self.now_ms, limit=0)
        self.reference.restart(self.now_ms)

    def _compare(self) -> None:
        reference, joiner = self.reference, self.partition.joiner
        expected = [self._row(made) for made in reference.made[-20:]]
        if len(self.made) != len(reference.made) or self.made[-20:] != expected:
            places = range(min(len(self.made), len(reference.made)))
            at = next((i for i in places if self.made[i] != self._row(reference.made[i])), -1)
            raise Broken(
                f"seed {self.seed} {self.policy}: expected {len(reference.made)} examples, found "
                f"{len(self.made)}; first other at {at}: {expected[-1:]}, {self.made[-1:]}"
            )
        if [(d.record, d.reason) for d in self.partition.dead] != reference.dead:
            raise Broken(f"seed {self.seed} {self.policy}: other dead letters")
        found = {name: getattr(joiner.counters, name) for name in reference.counted}
        wanted = _exact(reference.counted)
        if not joiner.restoring and _exact(found) != wanted:
            raise Broken(f"seed {self.seed} {self.policy}: expected {wanted}, found {found}")
        waiting = sum(not click.over for click in reference.waiting)
        if not joiner.restoring and joiner.window.waiting_clicks != waiting:
            raise Broken(f"seed {self.seed} {self.policy}: {waiting} clicks should wait")

    def _row(self, made: Made) -> tuple[object, ...]:
        shown = orjson.loads(made.impression.value)
        encoded = self.encoder.encode([shown])
        shown_ms = min(shown["timestamp_ms"], made.impression.append_ms)
        return (
            *(made.kind, made.label, made.event_ms, shown_ms, made.append_ms),
            *(shown["impression_id"], _text(shown["request_id"]), _text(shown["device"])),
            *(encoded.ids[0].tolist(), encoded.numbers[0].tolist(), encoded.bag_ids.tolist()),
        )


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _rows(examples: Examples) -> list[tuple[object, ...]]:
    if not len(examples):
        return []
    features = examples.features
    bags = (features.bag_offsets.shape[0] - 1) // len(examples)
    ends = features.bag_offsets[::bags]
    columns = zip(
        (_KINDS[kind] for kind in examples.kinds),
        *(examples.labels.tolist(), examples.event_ms.tolist(), examples.shown_ms.tolist()),
        *(examples.append_ms.tolist(), examples.impression_ids.to_pylist()),
        *(examples.request_ids.to_pylist(), examples.slices["device"].to_pylist()),
        *(features.ids.tolist(), features.numbers.tolist()),
        (features.bag_ids[ends[i] : ends[i + 1]].tolist() for i in range(len(examples))),
        strict=True,
    )
    return list(columns)


def run(seed: int, policy: str, wait_ms: int = 0) -> None:
    """Run one world. Raises Broken."""
    World(seed, policy, wait_ms).run()


def _exact(counted: dict[str, int]) -> dict[str, int]:
    """The counts that a restart does not change: late and unmatched clicks as one."""
    lost = counted["late_clicks"] + counted["unmatched_clicks"]
    return counted | {"late_clicks": lost, "unmatched_clicks": 0}
