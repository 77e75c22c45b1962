"""Events over eight connections to a collector, each sent until it is acknowledged."""

import contextlib
import http.client
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

CONNECTIONS = 8
GENEROUS_S = 60.0
TOKEN = "token-of-the-tests-0123456789"


@dataclass
class Sent:
    """The events sent over eight connections, and their answers."""

    acknowledged: Counter[str] = field(default_factory=Counter)
    statuses: Counter[int] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)


def send(port: int, batches: list[list[str]], sent: Sent) -> None:
    """Send batches over one connection, each until it is acknowledged."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=GENEROUS_S)
    headers = {"Content-Type": "application/x-ndjson", "Authorization": f"Bearer {TOKEN}"}
    now_ms = time.time_ns() // 1_000_000
    for names in batches:
        lines = [
            f'{{"impression_id":"{name}","timestamp_ms":{now_ms},"article_id":"{name}"}}'
            for name in names
        ]
        while True:
            connection.request("POST", "/v1/impressions", "\n".join(lines), headers)
            answer = connection.getresponse()
            text = answer.read()
            with sent.lock:
                sent.statuses[answer.status] += 1
                if answer.status == 200:
                    sent.acknowledged.update(names)
                    break
            assert answer.status in (429, 503), text
            threading.Event().wait(float(answer.headers["Retry-After"]))
    connection.close()


@contextlib.contextmanager
def sending(port: int, count: int, batch: int, stem: str) -> Iterator[Sent]:
    """Send `count` events from eight connections; at the end all are acknowledged."""
    names = [f"{stem}-{i}" for i in range(count)]
    batches = [names[begin : begin + batch] for begin in range(0, count, batch)]
    sent = Sent()
    threads = [
        threading.Thread(target=send, args=(port, batches[i::CONNECTIONS], sent), daemon=True)
        for i in range(CONNECTIONS)
    ]
    for thread in threads:
        thread.start()
    yield sent
    for thread in threads:
        thread.join()
    assert sent.acknowledged == Counter(names)
