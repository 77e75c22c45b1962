"""Tests the joiner loop over Kafka in memory: interruptions never lose or repeat examples."""

import json
import random
from collections.abc import Mapping, Sequence

import pytest

from headrace.ingest.errors import BadCheckpoint, KafkaUnreachable, TransactionAborted
from headrace.ingest.examples.batch import notes_of, pack, unpack
from headrace.ingest.examples.splitting import Cut
from headrace.ingest.joiner.loop import JoinerPacing
from headrace.ingest.kafka.fakes import ListTransactions
from headrace.ingest.kafka.protocols import Committed, Record, Source
from headrace.ingest.kafka.transactions import Outgoing
from tests.effort import LONG, seeds
from tests.ingest.events_of import TOPICS, Happened, examples_in, fields_of, happen
from tests.ingest.joiner.joiner_run import EXAMPLES, PARTITIONS, JoinerRun, saved

Records = Mapping[Source, Sequence[Record]]


class Troubled(ListTransactions):
    """Transactions of a Kafka in trouble."""

    def __init__(self, dice: random.Random) -> None:
        super().__init__()
        self._dice, self.troubles = dice, 0


class ForgetfulTransactions(Troubled):
    """Transactions that are sometimes written although their answer is lost."""

    def write(self, messages: Sequence[Outgoing], offsets: Mapping[Source, Committed]) -> None:
        super().write(messages, offsets)
        if self._dice.random() < 0.2:
            self.troubles += 1
            raise KafkaUnreachable("the answer was lost")


class PartlyCommitted(Troubled):
    """Transactions that a late request to commit ends before all of their messages are there."""

    def write(self, messages: Sequence[Outgoing], offsets: Mapping[Source, Committed]) -> None:
        if self._dice.random() > 0.4:
            super().write(messages, offsets)
            return
        rooms = {each.target: self._dice.randrange(len(messages) + 1) for each in messages}
        for each in messages:  # those of a partition keep their order
            if each.target.topic == EXAMPLES and rooms[each.target]:
                rooms[each.target] -= 1
                self.written.append(each)
        if self._dice.random() < 0.5:
            self.offsets.update(offsets)
        self.troubles += 1
        raise TransactionAborted("a message came too late")


def interrupted(records: Records, dice: random.Random, policy: str, kafka: Troubled) -> None:
    """Join the events with kills, aborts and rebalances at random times."""
    pace = JoinerPacing(lazy_commit_ms=0, turn_events=8, step_events=16, cut=Cut(most=20, least=1))
    deaths = losses = aborts = 0
    while deaths < 500:
        joiner_run = JoinerRun(
            records, kafka, policy=policy, largest_poll=dice.randrange(10, 100), pace=pace
        )
        for _ in range(dice.randrange(1, 60)):
            fate = dice.random()
            if fate < 0.05:
                aborts += 1
                kafka.failures.append(TransactionAborted("as the dice fell"))
            elif fate < 0.1:
                losses += 1
                partition = dice.randrange(PARTITIONS)
                for topic in (TOPICS.impressions, TOPICS.clicks):
                    joiner_run.reader.lose(Source(topic, partition))
                    joiner_run.reader.gain(Source(topic, partition))
            joiner_run.joiner.step(0.0)
            if joiner_run.done:
                assert deaths + losses + aborts > 2, "hardly anything happened"
                return
        deaths += 1
    raise AssertionError("it never ended")


def catch_up(joiner_run: JoinerRun) -> None:
    """Join what is left: offsets of the end may have come without their examples."""
    quiet = 0
    while quiet < 10:
        before = joiner_run.joiner.progress()
        joiner_run.joiner.step(0.0)
        quiet = quiet + 1 if joiner_run.joiner.progress() == before else 0


@pytest.mark.parametrize("troubled", [ForgetfulTransactions, PartlyCommitted])
@pytest.mark.parametrize("policy", ["immediate", "window"])
@pytest.mark.parametrize("seed", seeds(3 if LONG else 2))
def test_kills_aborts_rebalances_and_troubles_of_kafka_do_not_change_the_examples(
    seed: int, policy: str, troubled: type[Troubled]
) -> None:
    happened, dice = happen(seed, count=300, partitions=PARTITIONS), random.Random(seed)
    records, kafka = happened.records(TOPICS, PARTITIONS), troubled(dice)
    interrupted(records, dice, policy, kafka)
    assert kafka.troubles, "the trouble never came"
    catch_up(JoinerRun(records, kafka, policy=policy))
    found = examples_in(kafka.written, EXAMPLES, fields_of(policy))
    expected = happened.examples if policy == "immediate" else happened.closed
    assert sorted(found) == sorted(expected)
    if troubled is PartlyCommitted:
        return  # dead letters may be written again
    dead = [message for message in kafka.written if message.target.topic == TOPICS.dead_letters]
    assert len(dead) == happened.dead
    counters = [saved(kafka, p).checkpoint.counters for p in range(PARTITIONS)]
    total = counters[0] + counters[1]
    assert total.impressions == 300
    unmet = total.late_clicks + total.unmatched_clicks  # a restart may turn the one into the other
    assert (unmet, total.duplicates) == (happened.late, happened.duplicates)
    assert total.dead_letters == happened.dead


def test_the_topic_of_examples_begins_with_a_checkpoint_in_a_transaction_of_its_own() -> None:
    records = happen(seed=3, count=50, partitions=PARTITIONS).records(TOPICS, PARTITIONS)
    transactions = ListTransactions()
    transactions.failures = [TransactionAborted("no")]
    joiner_run = JoinerRun(records, transactions)
    while not transactions.written:
        joiner_run.joiner.step(0.0)
    targets = {Source(EXAMPLES, partition) for partition in range(PARTITIONS)}
    first = transactions.written[: len(targets)]
    assert {each.target for each in first} == targets
    for _, value, _ in first:
        assert len(unpack(value, joiner_run.joiner.fields)) == 0
        assert notes_of(value).checkpoint


def test_examples_without_any_position_are_not_made_twice_in_silence() -> None:
    happened = happen(seed=3, count=100, partitions=PARTITIONS)
    records, transactions = happened.records(TOPICS, PARTITIONS), ListTransactions()
    JoinerRun(records, transactions).run()
    made = len(examples_in(transactions.written, EXAMPLES, fields_of()))
    transactions.offsets.clear()
    transactions.written = [  # as an older headrace wrote them
        Outgoing(each.target, pack(unpack(each.value, fields_of())), each.key)
        if each.target.topic == EXAMPLES
        else each
        for each in transactions.written
    ]
    with pytest.raises(BadCheckpoint, match=f"{EXAMPLES}/.*got neither.*--join-again"):
        JoinerRun(records, transactions).run()
    JoinerRun(records, transactions, join_again=True).run()
    assert len(examples_in(transactions.written, EXAMPLES, fields_of())) == 2 * made


def test_a_dead_letter_has_the_reason_the_origin_and_the_event() -> None:
    happened = Happened(shown=[(1, 0, b"\xff\x00"), (2, 1, b"{}")])
    joiner_run = JoinerRun(happened.records(TOPICS, PARTITIONS), ListTransactions())
    joiner_run.run()
    letters = {
        letter["partition"]: letter
        for target, value, _ in joiner_run.transactions.written
        if target == Source(TOPICS.dead_letters, 0)
        for letter in [json.loads(value)]
    }
    assert letters[0]["value_base64"] == "/wA="
    assert "expected a JSON object" in letters[0]["reason"]
    assert (letters[0]["topic"], letters[0]["offset"]) == (TOPICS.impressions, 0)
    assert letters[1]["value"] == "{}"
    assert "expected timestamp_ms, found none" in letters[1]["reason"]
    reasons = {reason.name for reason in joiner_run.joiner.figures.dead_letters}
    assert reasons == {"NOT_JSON", "NO_TIME"}


def test_a_joiner_reads_again_after_an_abort_and_waits_longer_each_time() -> None:
    happened = happen(seed=3, count=50, partitions=PARTITIONS)
    transactions = ListTransactions()
    transactions.failures = [TransactionAborted("no") for _ in range(4)]
    joiner_run = JoinerRun(happened.records(TOPICS, PARTITIONS), transactions)
    joiner_run.run()
    assert sorted(joiner_run.examples) == sorted(happened.examples)
    assert joiner_run.joiner.figures.aborts == 4
    assert joiner_run.rests == sorted(joiner_run.rests)
    assert len(joiner_run.rests) == 3


def test_a_joiner_whose_transactions_keep_failing_stops_with_the_reason() -> None:
    transactions = ListTransactions()
    transactions.failures = [KafkaUnreachable("no broker") for _ in range(4)]
    records = happen(seed=3, count=50, partitions=PARTITIONS).records(TOPICS, PARTITIONS)
    joiner_run = JoinerRun(records, transactions)

    def step_for_minutes() -> None:
        for _ in range(100):
            joiner_run.clock_ms += 25_000
            joiner_run.joiner.step(0.0)

    with pytest.raises(KafkaUnreachable, match="no broker"):
        step_for_minutes()
    assert transactions.failures == []


def test_a_joiner_commits_progress_without_examples_lazily() -> None:
    happened = Happened()
    joiner_run = JoinerRun(
        happened.records(TOPICS, PARTITIONS), ListTransactions(), pace=JoinerPacing()
    )
    joiner_run.joiner.step(0.0)
    joiner_run.joiner.step(0.0)
    tick = json.dumps({"timestamp_ms": 1_700_000_000_000}).encode()
    source = Source(TOPICS.impressions, 0)
    joiner_run.reader.append(source, tick, 1_700_000_000_000)
    joiner_run.joiner.step(0.0)
    before = joiner_run.transactions.count
    joiner_run.clock_ms += 249
    joiner_run.joiner.step(0.0)
    assert joiner_run.transactions.count == before
    joiner_run.clock_ms += 1
    joiner_run.joiner.step(0.0)
    assert joiner_run.transactions.count == before + 1
    assert joiner_run.transactions.offsets[source].offset == 1
