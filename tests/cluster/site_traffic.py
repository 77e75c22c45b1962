"""Sends the events of the demo's site to the collector's pods, and asks the server's pods.

Both are found as a client of their Services finds them: among the ready addresses of the moment.
A request without an answer is sent again, to another pod, so no event and no question is lost.
"""

import threading
import time
from typing import Any

import httpx
import orjson

from headrace.deploy.demo.live_stream import LiveStream, Throttle
from headrace.deploy.demo.synthetic import Event, SyntheticEvents, SyntheticSite, SyntheticStream
from headrace.runtime.clock import wall_ms
from tests.cluster.control_plane import Refused
from tests.cluster.release import Release

MODEL = "demo"
_ASKED_EVERY_S = 0.5
_PATIENCE_S = 300.0
_PAUSE_S = 0.5
_TEMPORARY = (429, 503)


class Client:
    """Posts to the pods of one Service until one of them answers with 200."""

    def __init__(self, release: Release, component: str) -> None:
        self._release, self._component = release, component
        self._addresses: list[str] = []
        self._http = httpx.Client(timeout=10.0)
        self.last_failure = ""
        """Why the last attempt without an answer failed."""
        self.repeated = 0
        """Requests that were sent more than once."""
        self.longest_s = 0.0
        """Longest time from the first attempt to the answer."""

    def post(self, path: str, body: bytes, kind: str) -> dict[str, Any]:
        """Return the answer. Raises TimeoutError, or AssertionError if it is a refusal."""
        began_s, tries = time.monotonic(), 0
        while time.monotonic() - began_s < _PATIENCE_S:
            tries += 1
            answer = self._try(path, body, kind)
            if answer is not None:
                self.repeated += tries > 1
                self.longest_s = max(self.longest_s, time.monotonic() - began_s)
                return answer
            time.sleep(_PAUSE_S)
        raise TimeoutError(
            f"expected an answer of a {self._component} within {_PATIENCE_S:g} s, got "
            f"{self.last_failure}"
        )

    def _try(self, path: str, body: bytes, kind: str) -> dict[str, Any] | None:
        try:
            if not self._addresses:
                self._addresses = self._release.ready_addresses(self._component)
            if not self._addresses:
                self.last_failure = "no ready address"
                return None
            url = f"http://{self._addresses[0]}{path}"
            answer = self._http.post(url, content=body, headers={"content-type": kind})
        except (httpx.TransportError, Refused) as error:
            self._addresses, self.last_failure = [], repr(error)
            return None
        if answer.status_code in _TEMPORARY:
            self._addresses = []
            self.last_failure = f"{answer.status_code} {answer.text[:200]}"
            return None
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def close(self) -> None:
        self._http.close()


class SiteTraffic:
    """A stream of events and questions. `start`, then `finish`, which sends the last clicks."""

    def __init__(self, release: Release, events_s: float, seed: int) -> None:
        self.collector = Client(release, "collector")
        self.server = Client(release, "server")
        self.questions = 0
        self.failure: BaseException | None = None
        self._shown: list[Event] = []
        site = SyntheticSite(lifetime_s=float("inf"))
        self.stream = LiveStream(
            SyntheticStream(site, seed, wall_ms()),
            Throttle(events_s, least_s=events_s),  # nothing slows it down
            self._send,
            lambda: 0,
        )
        self._stop = threading.Event()
        self._asking = threading.Thread(target=self._ask, name="asking", daemon=True)

    def start(self) -> None:
        """Begin to send and to ask."""
        self.stream.start()
        self._asking.start()

    def finish(self) -> None:
        """Send the clicks that are due; return once Kafka has every event. Raises a failure."""
        self.stream.stop_showing()
        self.stream.join()
        self.close()
        if (failure := self.stream.failure or self.failure) is not None:
            raise failure

    def close(self) -> None:
        """End both threads."""
        self.stream.abandon()
        self._stop.set()
        for thread in (self.stream, self._asking):
            if thread.is_alive():
                thread.join()
        self.collector.close()
        self.server.close()

    def _send(self, happened: SyntheticEvents) -> None:
        self._shown = happened.impressions[:5] or self._shown
        for kind, events in (("impressions", happened.impressions), ("clicks", happened.clicks)):
            if events:
                body = b"\n".join(orjson.dumps(event) for event in events)
                answer = self.collector.post(f"/v1/{kind}", body, "application/x-ndjson")
                assert answer["accepted"] == len(events), answer

    def _ask(self) -> None:
        try:
            while not self._stop.wait(_ASKED_EVERY_S):
                if self._shown:
                    ask(self.server, self._shown)
                    self.questions += 1
        except BaseException as error:  # noqa: BLE001  (raised by `finish`)
            self.failure = error


def ask(client: Client, candidates: list[Event]) -> list[float]:
    """Return a server's predictions for these candidates."""
    names = ("item_id", "category", "position")
    body = {
        "context": {name: candidates[0][name] for name in ("user_id", "device")},
        "candidates": [{name: each[name] for name in names} for each in candidates],
    }
    answer = client.post(f"/v1/models/{MODEL}:predict", orjson.dumps(body), "application/json")
    predictions: list[float] = answer["predictions"]
    assert len(predictions) == len(candidates), answer
    return predictions
