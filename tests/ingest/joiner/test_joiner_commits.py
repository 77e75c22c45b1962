"""A joiner commits progress, windows that wall time closes, and nothing of an abort."""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import pytest

from headrace.ingest.errors import BadCheckpoint, OffsetGone
from headrace.ingest.examples.batch import unpack
from headrace.ingest.examples.splitting import Cut
from headrace.ingest.joiner.loop import JoinerPacing
from headrace.ingest.kafka.fakes import ListTransactions
from headrace.ingest.kafka.protocols import Committed, Source
from headrace.ingest.kafka.transactions import Outgoing
from tests.ingest.events_of import TOPICS, Happened, happen
from tests.ingest.joiner.joiner_run import EXAMPLES, PARTITIONS, JoinerRun, saved


def test_a_joiner_without_new_events_commits_nothing() -> None:
    joiner_run = JoinerRun(Happened().records(TOPICS, PARTITIONS), ListTransactions())
    joiner_run.run()
    joiner_run.joiner.step(0.0)
    before = joiner_run.transactions.count
    for _ in range(10):
        joiner_run.clock_ms += 1_000
        joiner_run.joiner.step(0.0)
    assert joiner_run.transactions.count == before


def test_a_joiner_loop_closes_windows_by_wall_time_without_new_events() -> None:
    happened = happen(seed=4, count=20, partitions=PARTITIONS)
    for events in (happened.shown, happened.clicked):
        del events[-PARTITIONS:]  # the ticks
    joiner_run = JoinerRun(
        happened.records(TOPICS, PARTITIONS), ListTransactions(), policy="window"
    )
    for _ in range(20):
        joiner_run.joiner.step(0.0)
    assert len(joiner_run.examples) < 20
    for _ in range(200):
        joiner_run.clock_ms += 10_000
        joiner_run.joiner.step(0.0)
    assert sorted(joiner_run.examples) == sorted(happened.closed)


def test_all_partitions_reach_the_same_event_time_and_number_their_examples() -> None:
    happened = happen(seed=5, count=2_000, partitions=PARTITIONS)
    pace = JoinerPacing(
        turn_events=16, step_events=100, backlog_commit_ms=0, cut=Cut(most=8, least=1)
    )
    joiner_run = JoinerRun(
        happened.records(TOPICS, PARTITIONS), ListTransactions(), pace=pace, largest_poll=300
    )
    transactions, reached_ms, count = [], -1, Counter[Source]()
    write = joiner_run.transactions.write

    def spied(messages: Sequence[Outgoing], offsets: Mapping[Source, Committed]) -> None:
        transactions.append([each for each in messages if each.target.topic == EXAMPLES])
        write(messages, offsets)

    joiner_run.transactions.write = spied  # type: ignore[method-assign]
    joiner_run.run()
    for messages in transactions:
        batches = [unpack(each.value, joiner_run.joiner.fields) for each in messages]
        for each, batch in zip(messages, batches, strict=True):
            assert batch.before == count[each.target]
            count[each.target] += len(batch)
        times = [batch.event_ms for batch in batches if len(batch)]
        if times:
            assert reached_ms <= min(int(each.min()) for each in times)
            reached_ms = max(int(each.max()) for each in times)
    assert len(transactions) > 20
    assert sorted(joiner_run.examples) == sorted(happened.examples)


def test_a_joiner_pauses_a_source_that_is_far_ahead() -> None:
    happened = happen(seed=6, count=3_000, partitions=1)
    records = happened.records(TOPICS, 1)
    shown, clicked = Source(TOPICS.impressions, 0), Source(TOPICS.clicks, 0)
    late = records[clicked]
    joiner_run = JoinerRun(
        {shown: records[shown], clicked: []}, ListTransactions(), pace=JoinerPacing(ahead_limit=500)
    )
    joiner_run.reader.pause([clicked])  # as if Kafka were slow with them: they are not at their end
    paused: set[Source] = set()
    for _ in range(20):
        joiner_run.joiner.step(0.0)
        joiner_run.reader.paused.add(clicked)
        paused |= joiner_run.reader.paused
    assert shown in paused
    assert joiner_run.joiner.partitions[0].core.queued(0) < 3_000  # type: ignore[arg-type]
    joiner_run.reader.records[clicked] += late
    joiner_run.reader.resume([clicked])
    joiner_run.run()
    assert sorted(joiner_run.examples) == sorted(happened.examples)
    assert not joiner_run.reader.paused


SHOWN, CLICKS = Source(TOPICS.impressions, 0), Source(TOPICS.clicks, 0)
REFUSED: dict[str, tuple[Callable[[JoinerRun], object], type[Exception], str]] = {
    "foreign metadata": (
        lambda run: run.transactions.offsets.update({SHOWN: Committed(0, "mine")}),
        *(BadCheckpoint, "'mine'"),
    ),
    "an emptied topic": (
        lambda run: run.reader.records.update({SHOWN: [], CLICKS: []}),
        *(OffsetGone, "retention"),
    ),
    "a recreated topic": (
        lambda run: setattr(run.reader, "topic_id", lambda topic: f"new-{topic}"),
        *(OffsetGone, "recreated"),
    ),
    # it would read the clicks again from the first one, which is still there
    "a topic that ends before the position": (
        lambda run: run.reader.records.update({CLICKS: run.reader.records[CLICKS][:-1]}),
        *(OffsetGone, "joined so far"),
    ),
}


@pytest.mark.parametrize("change", REFUSED)
def test_a_joiner_refuses_to_continue_where_its_checkpoint_does_not_fit(change: str) -> None:
    records = happen(seed=8, count=20, partitions=PARTITIONS).records(TOPICS, PARTITIONS)
    transactions = ListTransactions()
    JoinerRun(records, transactions).run()
    again = JoinerRun(records, transactions)
    apply, error, message = REFUSED[change]
    apply(again)
    with pytest.raises(error, match=message):
        again.joiner.step(0.0)


def test_a_joiner_refuses_the_checkpoint_of_another_spec() -> None:
    records = happen(seed=7, count=20, partitions=PARTITIONS).records(TOPICS, PARTITIONS)
    transactions = ListTransactions()
    JoinerRun(records, transactions, policy="window").run()
    with pytest.raises(BadCheckpoint, match="another name"):
        JoinerRun(records, transactions, policy="immediate").joiner.step(0.0)


def test_a_joiner_asks_for_ends_that_are_not_older_than_its_position() -> None:
    records = happen(seed=8, count=20, partitions=PARTITIONS).records(TOPICS, PARTITIONS)
    transactions = ListTransactions()
    JoinerRun(records, transactions).run()
    again = JoinerRun(records, transactions)
    again.reader.old_end = 1
    again.joiner.step(0.0)
    assert sorted(again.joiner.partitions) == [*range(PARTITIONS)]


def test_a_joiner_refuses_events_that_were_lost_after_they_were_joined() -> None:
    happened = happen(seed=8, count=20, partitions=PARTITIONS).records(TOPICS, PARTITIONS)
    records = {
        source: [record._replace(leader_epoch=3) for record in held]
        for source, held in happened.items()
    }
    transactions = ListTransactions()
    JoinerRun(records, transactions).run()
    clicks = Source(TOPICS.clicks, 1)
    assert saved(transactions, 1).leader_epochs == (3, 3)
    for cut_at, refused in ((transactions.offsets[clicks].offset, False), (1, True)):
        again = JoinerRun(records, transactions)
        again.reader.cut[clicks] = cut_at
        if refused:
            with pytest.raises(OffsetGone, match=f"lost records: {clicks.topic}/1 before offset"):
                again.joiner.step(0.0)
        else:
            again.joiner.step(0.0)


def test_a_checkpoint_of_an_older_headrace_has_no_leader_epochs() -> None:
    records = happen(seed=8, count=20, partitions=PARTITIONS).records(TOPICS, PARTITIONS)
    transactions = ListTransactions()
    JoinerRun(records, transactions).run()
    written = json.loads(transactions.offsets[Source(TOPICS.impressions, 0)].metadata)
    assert written.pop("leader_epochs") == [-1, -1]
    older = Committed(
        transactions.offsets[Source(TOPICS.impressions, 0)].offset, json.dumps(written)
    )
    transactions.offsets[Source(TOPICS.impressions, 0)] = older
    again = JoinerRun(records, transactions)
    again.reader.cut = dict.fromkeys(records, 0)
    again.joiner.step(0.0)
    assert saved(transactions, 0).leader_epochs == (-1, -1)


def test_a_finishing_joiner_commits_its_examples() -> None:
    happened = happen(seed=9, count=50, partitions=PARTITIONS)
    slow = JoinerPacing(lazy_commit_ms=10**9, backlog_events=1, backlog_commit_ms=10**9)
    joiner_run = JoinerRun(happened.records(TOPICS, PARTITIONS), ListTransactions(), pace=slow)
    joiner_run.joiner.step(0.0)
    joiner_run.joiner.step(0.0)
    assert not joiner_run.examples
    joiner_run.joiner.finish()
    assert sorted(joiner_run.examples) == sorted(happened.examples)


def test_a_restarted_joiner_commits_nothing_while_it_reads_again() -> None:
    first = next(happen(seed=10, count=400, partitions=1).parts(2))
    records, transactions = first.records(TOPICS, 1), ListTransactions()
    JoinerRun(records, transactions).run()
    count = transactions.count
    again = JoinerRun(records, transactions, largest_poll=7)
    again.joiner.step(0.0)
    counts = []
    while again.joiner.partitions[0].core.restoring:
        counts.append(transactions.count)
        again.joiner.step(0.0)
    assert len(counts) > 3 and {*counts} == {count}
