"""The rate of the live stream, and that it ends with its last click."""

import threading
import time

from headrace.deploy.demo.live_stream import LiveStream, Throttle
from headrace.deploy.demo.synthetic import SyntheticEvents, SyntheticSite, SyntheticStream


def test_the_throttle_keeps_the_target_rate_if_the_machine_keeps_up() -> None:
    throttle = Throttle(1000)
    assert {throttle.adapt(second, behind=50) for second in range(60)} == {1000}


def test_the_throttle_halves_the_rate_of_a_slow_machine_down_to_the_least() -> None:
    throttle = Throttle(1000, least_s=300, patience_s=2)
    assert throttle.adapt(0, behind=5000) == 500
    assert throttle.adapt(1, behind=5000) == 500, "the first halving has not shown yet"
    assert throttle.adapt(2, behind=5000) == 300
    assert throttle.adapt(9, behind=5000) == 300


def test_the_throttle_raises_the_rate_in_steps_after_the_machine_has_caught_up() -> None:
    throttle = Throttle(1000, recovery_s=1)
    throttle.adapt(0, behind=5000)
    rates = [throttle.adapt(second, behind=0) for second in (0.5, 1, 1.5, 2, 3, 4, 5)]
    assert rates == [500, 625, 625, 781.25, 976.5625, 1000, 1000]


def test_a_stopped_live_stream_still_sends_every_due_click() -> None:
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
    assert enough.wait(60)
    live.stop_showing()
    live.join(60)
    assert not live.is_alive()
    assert live.failure is None
    assert stream.pending == 0
    assert live.impressions == sum(len(each.impressions) for each in sent)
    assert live.clicks == sum(len(each.clicks) for each in sent) > 0


def test_an_error_of_sending_ends_the_live_stream_and_is_kept() -> None:
    def send(_happened: SyntheticEvents) -> None:
        raise ConnectionError("no broker")

    live = LiveStream(SyntheticStream(SyntheticSite(), 1, 0), Throttle(10), send, lambda: 0)
    live.start()
    live.join(60)
    assert isinstance(live.failure, ConnectionError)
