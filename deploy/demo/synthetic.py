"""Generates impressions and clicks of a synthetic site with known, changing click probabilities.

The site is a small news site: users open a page and see a slate of items. The probability of a
click is known. It is a logistic function of five terms that a model can learn from the fields of
the event:

    logit = base + appeal[item] + taste[user, category] + place[position] + habit[device]

Tastes, places and habits are constant. Appeals wander (an Ornstein-Uhlenbeck process), and items
die at a constant hazard and are replaced by new ones. Knowledge of items therefore loses its
value within a minute. This is the point of the demo: a model that goes on learning stays near the
best possible accuracy, and a model that stopped does not. If the site is configured so, all appeals
are drawn anew at one moment, and everything a model has learned about items is wrong.

The stream has no clock and no client. `step` takes the time, shows the requested number of slates
since the last call and returns the clicks that have become due. The same seed and the same calls
give the same events.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

Event = dict[str, Any]

CLICKS_SHARE = 0.16
"""Click rate of the stream: N / (1 + this) of N events are impressions."""
DEVICES = ("phone", "tablet", "desktop")
CATEGORIES = ("politics", "sport", "culture", "money", "science", "travel", "food", "local")


@dataclass(frozen=True, slots=True)
class SyntheticSite:
    """Size of the site, and speed of its changes."""

    users: int = 400
    """Few, so that each user appears several times a minute."""
    items: int = 30
    """Items at a time. The demo shows each about fifty times a second."""
    slate: int = 5
    """Impressions of a request, at positions 1 to this."""
    lifetime_s: float = 40.0
    """Mean life of an item: after 90 s nine of ten items are gone."""
    wander_s: float = 120.0
    """Relaxation time of an appeal."""
    click_delay_s: float = 2.0
    """Mean time from impression to click."""
    overturned_after_s: float = float("inf")
    """Time at which all items get a new appeal at once."""
    longest_delay_s: float = 8.0
    """Longest time from impression to click; the stream drains for as long at its end."""
    base: float = -1.6
    """Logit of a click if all other terms are zero: a click rate of about 16 %."""
    appeal_spread: float = 1.2
    """Standard deviation of the appeal of items, in logits: the main thing to learn."""
    taste_spread: float = 0.6
    """Standard deviation of the taste of users for a category, in logits."""

    @classmethod
    def lasting(cls, seconds: float) -> SyntheticSite:
        """Return a site for a demo of this length. Shorter demos change faster."""
        pace = min(1.0, seconds / 180.0)
        return cls(
            lifetime_s=cls().lifetime_s * pace,
            wander_s=cls().wander_s * pace,
            click_delay_s=cls().click_delay_s * max(pace, 0.1),
            longest_delay_s=cls().longest_delay_s * max(pace, 0.1),
        )


class SyntheticEvents(NamedTuple):
    """Events of one step, in the order of their time."""

    impressions: list[Event]
    truth: Floats  # (len(impressions),) probability of a click
    clicks: list[Event]


class SyntheticStream:
    """The events of a site. `pending` clicks are drawn but not due yet."""

    def __init__(self, world: SyntheticSite, seed: int, start_ms: int) -> None:
        self.world = world
        self.now_ms = start_ms
        self._random = np.random.default_rng(seed)
        self._overturned_ms = start_ms + 1000 * world.overturned_after_s
        self._name = f"{seed:x}-{start_ms:x}"
        random = self._random
        self._taste = random.normal(0, world.taste_spread, (world.users, len(CATEGORIES)))
        self._place = -0.25 * np.arange(world.slate)
        self._habit = np.array([0.2, 0.0, -0.3])
        self._device = random.integers(0, len(DEVICES), world.users)
        self._items = np.arange(world.items)
        self._category = random.integers(0, len(CATEGORIES), world.items)
        self._appeal = random.normal(0, world.appeal_spread, world.items)
        self._items_ever = world.items
        self._requests_ever = 0
        self._shown = 0
        self._due: list[tuple[int, str, str]] = []

    @property
    def pending(self) -> int:
        """Clicks that are not due yet."""
        return len(self._due)

    def postpone(self, start_ms: int) -> None:
        """Move the start of a stream that has not begun to a later time."""
        later_ms = max(0, start_ms - self.now_ms)
        self.now_ms += later_ms
        self._overturned_ms += later_ms

    def step(self, now_ms: int, requests: int) -> SyntheticEvents:
        """Advance to `now_ms`, with this number of requests spread evenly over the time.

        Time never goes back.
        """
        passed_ms = now_ms - self.now_ms
        self._change(passed_ms / 1000.0)
        if self.now_ms < self._overturned_ms <= now_ms:
            self._appeal = self._random.normal(0, self.world.appeal_spread, self.world.items)
        times = self.now_ms + (np.arange(1, requests + 1) * passed_ms) // max(requests, 1)
        impressions, truth = self._show(times)
        self.now_ms = now_ms
        return SyntheticEvents(impressions, truth, self._clicks_until(now_ms))

    def _change(self, seconds: float) -> None:
        # exact for a step of any length: the transition of an Ornstein-Uhlenbeck process
        world, random = self.world, self._random
        keep = float(np.exp(-seconds / world.wander_s))
        noise = world.appeal_spread * float(np.sqrt(1.0 - keep * keep))
        self._appeal = keep * self._appeal + noise * random.normal(size=world.items)
        gone = np.flatnonzero(random.random(world.items) > np.exp(-seconds / world.lifetime_s))
        self._items[gone] = self._items_ever + np.arange(gone.size)
        self._items_ever += gone.size
        self._category[gone] = random.integers(0, len(CATEGORIES), gone.size)
        self._appeal[gone] = random.normal(0, world.appeal_spread, gone.size)

    def _show(self, times: npt.NDArray[np.int64]) -> tuple[list[Event], Floats]:
        world, random, requests = self.world, self._random, times.size
        users = random.integers(0, world.users, requests)
        # an item is in a slate at most once: the first places of a shuffle
        places = random.random((requests, world.items)).argsort(axis=1)[:, : world.slate]
        logit = (
            world.base
            + self._appeal[places]
            + self._taste[users[:, None], self._category[places]]
            + self._place
            + self._habit[self._device[users]][:, None]
        )
        truth = (1.0 / (1.0 + np.exp(-logit))).ravel()  # (requests * slate,)
        clicked = random.random(truth.size) < truth
        delays = random.exponential(world.click_delay_s, truth.size).clip(0, world.longest_delay_s)
        impressions: list[Event] = []
        for request, (time, user) in enumerate(zip(times.tolist(), users.tolist(), strict=True)):
            request_id = f"{self._name}-r{self._requests_ever + request}"
            for position, place in enumerate(places[request].tolist()):
                impressions.append(
                    {
                        "impression_id": f"{self._name}-{self._shown + len(impressions)}",
                        "timestamp_ms": time,
                        "request_id": request_id,
                        "user_id": f"u{user}",
                        "item_id": f"i{self._items[place]}",
                        "category": CATEGORIES[self._category[place]],
                        "position": position + 1,
                        "device": DEVICES[self._device[user]],
                    }
                )
        for index in np.flatnonzero(clicked).tolist():
            shown = impressions[index]
            when_ms = shown["timestamp_ms"] + 1 + int(1000 * delays[index])
            identity = shown["impression_id"], shown["request_id"]
            heapq.heappush(self._due, (when_ms, *identity))
        self._requests_ever += requests
        self._shown += len(impressions)
        return impressions, truth

    def _clicks_until(self, now_ms: int) -> list[Event]:
        clicks: list[Event] = []
        while self._due and self._due[0][0] <= now_ms:
            when_ms, impression_id, request_id = heapq.heappop(self._due)
            identity = {"impression_id": impression_id, "request_id": request_id}
            clicks.append({**identity, "timestamp_ms": when_ms})
        return clicks
