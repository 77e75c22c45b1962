"""Impressions are scored once each, across aborts, crashes and rebalances."""

import json
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from headrace.ingest.dead_letters.letter import Letter, unpack
from headrace.ingest.errors import BadCheckpoint, KafkaUnreachable, OffsetGone, TransactionAborted
from headrace.ingest.kafka.fakes import ListReader, ListTransactions, memory_ports
from headrace.ingest.kafka.protocols import Committed, Record, Source
from headrace.serving.requests.candidates import Candidates
from headrace.serving.scoring.loop import ScoringTopics, StreamScorer
from tests.serving.served_models import (
    NOW_MS,
    Pusher,
    Serving,
    deltas_of_article,
    memory_store,
    news,
)

TOPICS = ScoringTopics("impressions", "scored", "dead-letters")
INPUT, IDLE = Source("impressions", 0), Source("impressions", 1)


class World:
    """A reader with records, transactions, and a trained model."""

    def __init__(self, again: bool = False, model: str = "") -> None:
        """model: further lines of the spec's section of that name."""
        self.again = again
        spec = news(model)
        store = memory_store(spec)
        self.serving = Serving(store, spec=spec)
        Pusher(store).push(deltas_of_article(spec, "hot", -3.0))
        self.serving.follow()
        self.reader = ListReader({INPUT: [], IDLE: []})
        self.transactions = ListTransactions()
        self.rested: list[float] = []
        self.scoring = self.begin()

    def begin(self) -> StreamScorer:
        """A process that replaces another."""
        ports = memory_ports(self.reader, self.transactions, self.serving.clock, self.rested.append)
        return StreamScorer(
            ports,
            self.serving.served,
            TOPICS,
            lambda: not self.again and bool(self.written("scored")),
        )

    def add(self, *values: bytes) -> None:
        first = len(self.reader.records[INPUT])
        for offset, value in enumerate(values, first):
            self.reader.records[INPUT].append(Record(INPUT, offset, NOW_MS, value, b"key"))

    def run(self, scoring: StreamScorer | None = None) -> None:
        (scoring or self.scoring).step(0.0)  # partitions are gained
        while (scoring or self.scoring).step(0.0):
            pass

    def written(self, topic: str) -> list[Any]:
        messages = [each for each in self.transactions.written if each.target.topic == topic]
        return [json.loads(each.value) for each in messages]


def impression(name: str, **fields: object) -> bytes:
    return msgspec.json.encode({"impression_id": name, "timestamp_ms": NOW_MS, **fields})


def test_stream_scores_equal_those_of_requests_and_name_model_and_version() -> None:
    world = World()
    events: Sequence[dict[str, object]] = [
        {"article_id": "hot", "topics": ["a"], "price": 2.5, "colour": "red"},
        {"article_id": "cold", "user_id": 7},
    ]
    world.add(impression("i1", request_id="r", **events[0]), impression("i2", **events[1]))
    world.run()
    asked = Candidates({}, events, NOW_MS)
    rows = world.serving.follower.reading()
    expected = world.serving.predictor.predict(rows, asked, NOW_MS).tolist()
    common = {"timestamp_ms": NOW_MS, "model": "news", "version": 4, "state": "fresh"}
    assert world.written("scored") == [
        {"impression_id": "i1", "request_id": "r", **common, "score": expected[0]},
        {"impression_id": "i2", **common, "score": expected[1]},
    ]
    assert expected[0] > expected[1]
    assert [each.key for each in world.transactions.written] == [b"i1", b"i2"]
    assert world.scoring.figures.scored == 2


def test_candidates_compete_with_those_of_their_own_request_only() -> None:
    world = World(model='loss = "choice"\n')
    events: Sequence[dict[str, object]] = [{"article_id": "hot"}, {"article_id": "cold"}]
    world.add(
        *(
            impression(f"{request}{place}", request_id=request, **event)
            for request in ("r1", "r2")
            for place, event in enumerate(events)
        )
    )
    world.run()
    asked, rows = Candidates({}, events, NOW_MS), world.serving.follower.reading()
    alone = world.serving.predictor.predict(rows, asked, NOW_MS).tolist()
    assert [each["score"] for each in world.written("scored")] == [*alone, *alone]


def test_invalid_impressions_go_to_the_dead_letters_in_the_same_transaction() -> None:
    world = World()
    tick = msgspec.json.encode({"timestamp_ms": NOW_MS})
    world.add(impression("i1"), b"{", tick, b'{"impression_id": "i2"}', impression("i3"))
    world.run()
    assert [each["impression_id"] for each in world.written("scored")] == ["i1", "i3"]
    letters = [
        unpack(each.value)
        for each in world.transactions.written
        if each.target.topic == "dead-letters"
    ]
    assert [each.origin.offset for each in letters if isinstance(each, Letter)] == [1, 3]
    assert world.scoring.figures.dead_letters == {"not_json": 1, "no_time": 1}
    assert world.transactions.count == 1
    assert world.transactions.offsets[INPUT] == Committed(5, "id-of-impressions")


def test_scoring_continues_at_the_last_commit_after_an_abort_and_after_a_kill() -> None:
    world = World()
    world.reader.largest_poll = 2
    world.add(*(impression(f"i{each}") for each in range(7)))
    world.scoring.step(0.0)  # gained
    world.scoring.step(0.0)
    world.transactions.failures = [TransactionAborted("once"), KafkaUnreachable("twice")]
    world.scoring.step(0.0)
    world.scoring.step(0.0)
    assert world.scoring.figures.aborts == 2 and len(world.rested) == 1
    world.scoring.step(0.0)
    killed = world.scoring.figures.scored
    world.reader.gain(INPUT)
    again = world.begin()
    world.run(again)
    names = [each["impression_id"] for each in world.written("scored")]
    assert names == [f"i{each}" for each in range(7)]
    assert killed + again.figures.scored == 7


def test_a_scorer_whose_offsets_kafka_forgot_stops_instead_of_scoring_twice() -> None:
    world = World()
    world.add(*(impression(f"i{each}") for each in range(3)))
    world.run()
    world.transactions.offsets.clear()
    world.reader.gain(INPUT)
    with pytest.raises(BadCheckpoint, match=r"impressions/0: .* got none, .*--score-again"):
        world.run(world.begin())
    assert len(world.written("scored")) == 3
    world.again = True
    world.reader.gain(INPUT)
    world.run(world.begin())
    assert len(world.written("scored")) == 6


def test_impressions_of_a_partition_that_was_idle_at_the_first_transaction_are_scored() -> None:
    world = World()
    world.add(impression("i1"))
    world.run()
    assert world.transactions.offsets[IDLE] == Committed(0, "id-of-impressions")
    world.reader.append(IDLE, impression("i2"), NOW_MS)
    for source in (INPUT, IDLE):
        world.reader.gain(source)
    world.run(world.begin())
    assert [each["impression_id"] for each in world.written("scored")] == ["i1", "i2"]


def test_a_recreated_topic_is_scored_from_its_start_and_removed_impressions_are_counted() -> None:
    world = World()
    world.add(*(impression(f"i{each}") for each in range(5)))
    world.transactions.offsets[INPUT] = Committed(3, "id-of-another")
    world.run()
    assert len(world.written("scored")) == 5
    world = World()
    world.reader.records[INPUT] += [
        Record(INPUT, offset, NOW_MS, impression(f"i{offset}"), None) for offset in range(10, 13)
    ]
    world.transactions.offsets[INPUT] = Committed(6, "id-of-impressions")
    world.run()
    assert len(world.written("scored")) == 3
    assert world.scoring.figures.gone == 4


def test_a_log_that_lost_scored_impressions_stops_the_scorer() -> None:
    world = World()
    world.add(*(impression(f"i{each}") for each in range(3)))
    world.reader.records[INPUT] = [
        record._replace(leader_epoch=4) for record in world.reader.records[INPUT]
    ]
    world.run()
    assert world.transactions.offsets[INPUT] == Committed(3, "id-of-impressions", 4)
    world.reader.cut[INPUT] = 1  # Kafka wrote other records from here on
    world.reader.gain(INPUT)
    with pytest.raises(OffsetGone, match=r"impressions/0: .*up to offset 3.*--score-again"):
        world.run(world.begin())
    assert len(world.written("scored")) == 3
    world.again = True
    world.reader.gain(INPUT)
    world.run(world.begin())
    assert len(world.written("scored")) == 6
