"""The rate of the live stream, and that it ends with its last click."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from headrace.deploy.demo.live_stream import LiveStream, Throttle
from headrace.deploy.demo.synthetic import SyntheticSite, SyntheticStream

if TYPE_CHECKING:
    from headrace.deploy.demo.synthetic import SyntheticEvents


def test_a_machine_that_follows_gets_the_rate_wanted() -> None:
    throttle = Throttle(1000)
    assert {throttle.adapt(second, behind=50) for second in range(60)} == {1000}


def test_one_that_falls_behind_gets_half_and_no_less_than_the_least() -> None:
    throttle = Throttle(1000, least_s=300, patience_s=2)
    assert throttle.adapt(0, behind=5000) == 500
    assert throttle.adapt(1, behind=5000) == 500, "the first halving has not shown yet"
    assert throttle.adapt(2, behind=5000) == 300
    assert throttle.adapt(9, behind=5000) == 300


def test_one_that_has_caught_up_gets_more_again_little_by_little() -> None:
    throttle = Throttle(1000, recovery_s=1)
    throttle.adapt(0, behind=5000)
    rates = [throttle.adapt(second, behind=0) for second in (0.5, 1, 1.5, 2, 3, 4, 5)]
    assert rates == [500, 625, 625, 781.25, 976.5625, 1000, 1000]


def test_it_shows_until_told_to_stop_and_then_sends_every_click_that_is_due() -> None:
    sent: list[SyntheticEvents] = []
    enough = threading.Event()

    def send(happened: SyntheticEvents) -> None:
        sent.append(happened)
        if sum(len(each.impressions) for each in sent) >= 200:
            enough.set()

    now_ms = time.time_ns() // 1_000_000
    stream = SyntheticStream(SyntheticSite(click_delay_s=0.05, longest_delay_s=0.2), 1, now_ms)
    live = LiveStream(stream, Throttle(2000), send, lambda: 0)
    live.start()
    assert enough.wait(20)
    live.stop_showing()
    live.join(20)
    assert not live.is_alive()
    assert live.failure is None
    assert stream.pending == 0
    assert live.impressions == sum(len(each.impressions) for each in sent)
    assert live.clicks == sum(len(each.clicks) for each in sent) > 0


def test_what_sending_raises_ends_it_and_is_kept() -> None:
    def send(_happened: SyntheticEvents) -> None:
        raise ConnectionError("nobody there")

    live = LiveStream(SyntheticStream(SyntheticSite(), 1, 0), Throttle(10), send, lambda: 0)
    live.start()
    live.join(20)
    assert isinstance(live.failure, ConnectionError)
