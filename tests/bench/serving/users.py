"""The users of `locust -f` that send requests to the server. `locusts` starts it.

locust's own statistics round times to a millisecond, so exact times are recorded here. They begin
when a request is sent. `constant_throughput` is at most the rate: a user that waits for an answer
sends its next request late, and the delay is not recorded.
"""

import itertools
import json
import os
import time
from pathlib import Path
from typing import Any

from locust import FastHttpUser, constant, constant_throughput, events, task

_ASKED: dict[str, Any] = json.loads(Path(os.environ["ASKED"]).read_text())
_BODIES = itertools.cycle(_ASKED["bodies"])
_RATE = _ASKED["rate_per_s_of_each"]
_WARM_S = 1.0
"""Not counted: users come one by one, and connect."""


class Asker(FastHttpUser):  # type: ignore[misc,unused-ignore]
    """Asks again and again, on one connection."""

    wait_time = constant(0) if _RATE is None else constant_throughput(_RATE)

    @task  # type: ignore[untyped-decorator,unused-ignore]
    def ask(self) -> None:
        """Ask once."""
        head = {"Content-Type": "application/json"}
        self.client.post(_ASKED["path"], data=next(_BODIES), headers=head, name="predict")


class Notes:
    """The answers since all users were connected."""

    def __init__(self) -> None:
        self._waits_ms: list[float] = []
        self._refused = 0
        self._warm_at_s: float | None = None
        self._began_s = self._processor_s = 0.0

    def note(self, response_time: float, response: Any, **_: Any) -> None:
        """Count an answer."""
        now_s = time.perf_counter()
        if self._warm_at_s is None:
            self._warm_at_s = now_s + _WARM_S
        if now_s < self._warm_at_s:
            return
        if not self._began_s:
            self._began_s, self._processor_s = now_s, time.process_time()
        self._refused += response.status_code != 200
        self._waits_ms.append(response_time)

    def tell(self, **_: Any) -> None:
        """Write what was counted to where `locusts` looks for it."""
        found = {
            "waits_ms": self._waits_ms,
            "refused": self._refused,
            "seconds": time.perf_counter() - self._began_s,
            "processor_s": time.process_time() - self._processor_s,
        }
        Path(os.environ["FOUND"]).write_text(json.dumps(found))


_notes = Notes()
events.request.add_listener(_notes.note)  # type: ignore[no-untyped-call,unused-ignore]
events.test_stop.add_listener(_notes.tell)  # type: ignore[no-untyped-call,unused-ignore]
