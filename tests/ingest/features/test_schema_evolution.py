"""Tests schema evolution: fields that appear, disappear or change their type.

`ingest.features.fields` has the rules. `test_encode` and `test_values` test those of single values.
"""

from collections.abc import Sequence

import orjson
import pyarrow as pa

from headrace.ingest.examples.batch import Examples, Kind, concatenate, unpack
from headrace.ingest.features.encoder import Encoder
from headrace.ingest.features.fields import FieldSet, parse_fields
from headrace.ingest.features.hashing import ABSENT, field_id
from headrace.ingest.features.spec_text import SpecText
from headrace.ingest.joiner.loop import Joiner, JoinerPacing
from headrace.ingest.kafka.fakes import ListReader, ListTransactions, memory_ports
from headrace.ingest.kafka.protocols import Record, Source
from headrace.ingest.kafka.topics import EventTopics, examples_topic, joiner_group

T0_MS = 1_700_000_000_000
TOPICS = EventTopics()
OLD_SPEC = """
[examples]
slice_by = ["device"]
[fields.article]
number = 1
transform = "id"
[fields.price]
number = 2
transform = "log_bucket"
[fields.tags]
number = 3
transform = "bag"
[fields.weight]
number = 4
transform = "number"
"""
NEW_SPEC = """
[label]
policy = "window"
window_s = 600
[fields.article]
number = 1
transform = "id"
[fields.publisher]
number = 5
transform = "id"
[fields.pair]
number = 6
transform = "cross"
of = ["article", "publisher"]
"""


def fields_of(text: str) -> FieldSet:
    where = SpecText("spec.toml", text)
    return parse_fields(where.tables(), where)


OLD, NEW = fields_of(OLD_SPEC), fields_of(NEW_SPEC)


def shown(identity: str, at: int, **more: object) -> bytes:
    return orjson.dumps({"impression_id": identity, "timestamp_ms": T0_MS + at, **more})


def clicked(identity: str, at: int, **more: object) -> bytes:
    return shown(identity, at, **more)


class Broker:
    """Both topics of one partition, and the committed state of each model's joiner."""

    def __init__(self) -> None:
        self.shown, self.clicked = Source(TOPICS.impressions, 0), Source(TOPICS.clicks, 0)
        self.records: dict[Source, list[Record]] = {self.shown: [], self.clicked: []}
        self.committed: dict[str, ListTransactions] = {}

    def send(self, source: Source, values: Sequence[bytes]) -> None:
        held = self.records[source]
        for value in values:
            held.append(Record(source, len(held), T0_MS + 10**9, value))

    def join(self, model: str, fields: FieldSet) -> Examples:
        """Run a joiner of this model to the end; return all examples it ever made."""
        transactions = self.committed.setdefault(model, ListTransactions())
        reader = ListReader(self.records)
        ports = memory_ports(reader, transactions)
        joiner = Joiner(ports, model, fields, TOPICS, JoinerPacing(lazy_commit_ms=0))
        for _ in range(100):
            joiner.step(0.0)
        batches = [
            unpack(message.value, fields)
            for message in transactions.written
            if message.target.topic == examples_topic(model)
        ]
        assert not [m for m in transactions.written if m.target.topic == TOPICS.dead_letters]
        return concatenate(batches)


END = [orjson.dumps({"timestamp_ms": T0_MS + 3_600_000})]


def ids(examples: Examples, fields: FieldSet, name: str) -> list[int]:
    place = [each.name for each in fields.singles].index(name)
    return [int(each) for each in examples.features.ids[:, place]]


def one_id(fields: FieldSet, name: str, value: object) -> int:
    encoded = Encoder(fields).encode([{fields[name].source: value}])
    return int(encoded.ids[0][[each.name for each in fields.singles].index(name)])


def test_a_field_that_no_spec_names_changes_nothing() -> None:
    broker = Broker()
    base = {"article": 7, "price": 3, "tags": ["a"], "weight": 1.5, "device": "phone"}
    broker.send(broker.shown, [shown("1", 0, **base)])
    broker.send(broker.shown, [shown("2", 1, **base, brand_new="x", listed=[1, 2])])
    broker.send(broker.clicked, [clicked("2", 2, value=3, dwell=[1]), *END])
    broker.send(broker.shown, END)
    made = broker.join("old", OLD)
    assert made.kinds.tolist() == [Kind.SHOWN, Kind.SHOWN, Kind.CLICKED]
    assert (made.features.ids == made.features.ids[0]).all()
    assert (made.features.numbers == 1.5).all()


def test_a_field_that_producers_no_longer_send_is_absent_and_its_rows_stay_apart() -> None:
    broker = Broker()
    broker.send(broker.shown, [shown("1", 0, article=7, price=3, tags=["a"], weight=1.5)])
    broker.send(broker.shown, [shown("2", 1), shown("3", 2, article=None, tags=None, weight=None)])
    broker.send(broker.shown, END)
    broker.send(broker.clicked, END)
    made = broker.join("old", OLD)
    absent = field_id(ABSENT, OLD["article"].number)
    assert ids(made, OLD, "article")[1:] == [absent, absent] != ids(made, OLD, "article")[:1]
    assert made.features.numbers[:, 0].tolist() == [1.5, 0.0, 0.0]
    assert made.features.bag_offsets.tolist() == [0, 1, 1, 1]
    assert made.slices["device"].to_pylist() == [None, None, None]


def test_clicks_meet_impressions_while_types_change_within_a_window() -> None:
    broker = Broker()
    changing = [7, "7", 7.0, True, None, [7], "seven"]
    values = [shown(f"{i}", i, article=value) for i, value in enumerate(changing)]
    broker.send(broker.shown, [*values, *END])
    broker.send(broker.clicked, [*(clicked(f"{i}", 10 + i) for i in range(len(changing))), *END])
    made = broker.join("old", OLD)
    by_kind = [made.impression_ids.filter(pa.array(made.kinds == kind)) for kind in (0, 1)]
    assert by_kind[0].to_pylist() == by_kind[1].to_pylist() == [f"{i}" for i in range(7)]
    found = ids(made, OLD, "article")[:7]
    assert found == [one_id(OLD, "article", value) for value in changing]
    assert len(set(found[:3])) == 1


def test_a_new_spec_joins_beside_the_old_one_from_the_oldest_event() -> None:
    broker = Broker()
    first = [shown(f"{i}", i, article=i % 3, publisher="p") for i in range(50)]
    broker.send(broker.shown, first)
    broker.send(broker.clicked, [clicked("3", 60)])
    before = broker.join("old", OLD)
    assert 0 < len(before) <= 51
    broker.send(broker.shown, [*(shown(f"{i}", i, article=1) for i in range(50, 80)), *END])
    broker.send(broker.clicked, [clicked("60", 90), *END])
    for model, fields in (
        ("new", NEW),
        ("old", OLD),
        ("new", NEW),
    ):
        broker.join(model, fields)
    old, new = broker.join("old", OLD), broker.join("new", NEW)
    assert sorted(old.impression_ids.to_pylist(), key=int) == sorted(
        [*map(str, range(80)), "3", "60"], key=int
    )
    assert new.kinds.tolist() == [Kind.CLOSED] * 80
    assert new.impression_ids.filter(pa.array(new.labels == 1)).to_pylist() == ["3", "60"]
    assert joiner_group("old") != joiner_group("new")


def test_the_fingerprint_changes_exactly_when_the_examples_would() -> None:
    changes = [
        OLD_SPEC.replace('transform = "log_bucket"', 'transform = "id"'),
        OLD_SPEC.replace("number = 4", "number = 5"),
        OLD_SPEC + '[fields.more]\nnumber = 9\ntransform = "id"\n',
        OLD_SPEC + "[label]\nwindow_s = 60\n",
        OLD_SPEC.replace('["device"]', "[]"),
    ]
    prints = {fields_of(text).fingerprint for text in [OLD_SPEC, *changes]}
    assert len(prints) == 1 + len(changes)
    same = OLD_SPEC + '[label]\npolicy = "immediate"\n# and a remark\n[optimizer]\nalpha = 1\n'
    assert fields_of(same).fingerprint == OLD.fingerprint
