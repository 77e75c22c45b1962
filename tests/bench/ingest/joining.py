"""Makes the events of the joiner's benchmark.

An event has 12 fields in some 300 bytes of JSON: ids with a few to a hundred thousand values, an
hour, a logarithm and a cross. One impression in ten is clicked, some seconds later.
"""

import random
from collections.abc import Iterator

from headrace.ingest.features.fields import FieldSet, parse_fields
from headrace.ingest.features.spec_text import SpecText

PARTITIONS = 4
START_MS = 1_700_000_000_000
RATE_PER_S = 10_000
"""Impressions a second of event time."""
CLICKED = 0.1
WINDOW_MS = 1_800_000
_CATEGORIES = ("news", "sport", "culture", "local")
_TRANSFORMS = {
    "user_id": "id",
    "item_id": "id",
    "publisher": "id",
    "category": "id",
    "device": "id",
    "os": "id",
    "country": "id",
    "placement": "id",
    "position": "id",
    "price": "log_bucket",
    "hour": "hour",
}


def spec_of(policy: str = "immediate") -> str:
    """Return the text of a spec with the 12 fields."""
    text = f'[label]\npolicy = "{policy}"\nwindow_s = {WINDOW_MS // 1000}\n'
    for number, (name, transform) in enumerate(_TRANSFORMS.items(), 1):
        text += f'[fields.{name}]\nnumber = {number}\ntransform = "{transform}"\n'
    return text + '[fields.cross]\nnumber = 12\ntransform = "cross"\nof = ["user_id", "category"]\n'


def fields_of(policy: str) -> FieldSet:
    """Return the 12 fields."""
    where = SpecText("bench.toml", spec_of(policy))
    return parse_fields(where.tables(), where)


def events(count: int, seed: int = 1) -> Iterator[tuple[bool, str, bytes]]:
    """Yield (is a click, impression id, event) of `count` impressions, in order of event time."""
    dice = random.Random(seed)
    waiting: list[tuple[int, str]] = []  # clicks, in order of time
    for i in range(count):
        time_ms = START_MS + i * 1000 // RATE_PER_S
        while waiting and waiting[0][0] <= time_ms:
            yield _click(*waiting.pop(0))
        identity = f"{dice.getrandbits(128):032x}"
        event = (
            f'{{"impression_id":"{identity}","request_id":"{i // 8:032x}","timestamp_ms":{time_ms},'
            f'"user_id":"u{i // 8 * 7919 % 100_003}","item_id":{dice.getrandbits(16)},'
            f'"publisher":"p{i % 211}","category":"{_CATEGORIES[i % 4]}",'
            f'"device":"{"phone" if i % 3 else "desktop"}","os":"android","country":"DK",'
            f'"placement":"top-{i % 5}","position":{i % 8},'
            f'"price":{dice.randrange(1, 4000) / 100}}}'
        )
        yield False, identity, event.encode()
        if dice.random() < CLICKED:
            waiting.append((time_ms + 2_000, identity))
    for click in waiting:
        yield _click(*click)


def _click(time_ms: int, identity: str) -> tuple[bool, str, bytes]:
    event = f'{{"impression_id":"{identity}","timestamp_ms":{time_ms},"value":1.5}}'
    return True, identity, event.encode()
