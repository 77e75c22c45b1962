"""The evaluator: totals equal a recount, also after a crash at any write."""

import random
from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.serving.evaluation.evaluator import EvaluationRules, Evaluator, TableWrite
from headrace.serving.evaluation.messages import (
    LEARNED,
    EvaluationRows,
    UnreadableRows,
    pack,
    unpack,
)
from headrace.serving.evaluation.window_pane import WHOLE, PaneSummary, combine, whole
from headrace.serving.evaluation.windows import total
from tests.serving.evaluation.recount import recount
from tests.serving.evaluation.streams import (
    ALIASES,
    BEGIN_MS,
    FIELDS,
    SOURCES,
    Traffic,
    messages,
    traffic,
)

RULES = EvaluationRules(fields=FIELDS, wait_ms=120_000, hold_ms=60_000, keep_ms=1 << 50)
FORGETFUL = replace(RULES, keep_ms=120_000)


def truth(made: Traffic) -> PaneSummary:
    """The expected totals."""
    return recount(made.examples, made.scores, made.predictions)


def apply(table: dict[str, bytes], writes: list[TableWrite]) -> None:
    """Apply writes to the table like Kafka's changelog."""
    for key, value in writes:
        if value is None:
            table.pop(key, None)
        else:
            table[key] = value


def folded(rules: EvaluationRules, log: Iterable[bytes]) -> Evaluator:
    """Return an evaluation of these messages."""
    evaluation = Evaluator(rules, SOURCES)
    for offset, message in enumerate(log):
        evaluation.fold(offset, message)
    return evaluation


def started(rules: EvaluationRules, table: dict[str, bytes]) -> Evaluator:
    """An evaluation restored from a table."""
    evaluation = Evaluator(rules, SOURCES)
    evaluation.restore(table.items())
    return evaluation


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 1 << 30))
def test_the_totals_of_sources_in_any_order_equal_a_recount(seed: int) -> None:
    made = traffic(seed, minutes=6, requests_per_minute=4)
    left = {
        source: [i for i, (s, _) in enumerate(made.batches) if s == source] for source in SOURCES
    }
    dice, order = random.Random(seed), []
    while any(left.values()):
        order.append(left[dice.choice([s for s in SOURCES if left[s]])].pop(0))
    in_turn = folded(RULES, messages(made, seed))
    assert in_turn.closed, "nothing was closed: the test shows less than it says"
    # what a source says of time may run ahead of a source not heard of for a while: never lost
    for evaluation in (in_turn, folded(RULES, messages(made, seed, order=order))):
        assert total(evaluation) == truth(made)
        assert evaluation.state.late == 0


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 1 << 30), st.booleans())
def test_a_crash_at_any_write_of_the_table_loses_and_repeats_nothing(
    seed: int, forgetful: bool
) -> None:
    dice = random.Random(seed)
    rules = FORGETFUL if forgetful else RULES
    made = traffic(seed, minutes=7, requests_per_minute=2)
    log = messages(made, seed)
    undisturbed = folded(rules, log)

    table: dict[str, bytes] = {}
    evaluation, committed, offset, crashes = started(rules, table), 0, 0, 0
    while offset < len(log):
        writes = evaluation.fold(offset, log[offset])
        if dice.random() < 0.3 and crashes < 8:
            # dead after some of the writes; the offset was committed anywhere before
            crashes += 1
            apply(table, writes[: dice.randrange(len(writes) + 1)])
            committed = dice.randrange(committed, offset + 1)
            offset = committed
            evaluation = started(rules, table)
            continue
        apply(table, writes)
        offset += 1

    assert total(evaluation) == total(undisturbed)
    assert evaluation.state == undisturbed.state
    assert evaluation.summaries() == undisturbed.summaries()
    assert total(started(rules, table)) == total(undisturbed)
    assert whole(total(undisturbed)) == whole(truth(made))


def test_the_table_drops_minutes_that_no_window_needs() -> None:
    made = traffic(1, minutes=30)
    evaluation = Evaluator(FORGETFUL, SOURCES)
    table: dict[str, bytes] = {}
    for offset, message in enumerate(messages(made, 1)):
        apply(table, evaluation.fold(offset, message))
    assert sum(key.startswith("pane/") for key in table) <= 3
    assert len([key for key in table if key.startswith("rows/")]) < 40
    assert len(messages(made, 1)) > 80
    assert whole(total(started(FORGETFUL, table))) == whole(truth(made))


def test_a_sample_has_complete_requests_and_its_rate() -> None:
    made = traffic(3, minutes=3, requests_per_minute=300)
    evaluation = folded(RULES, messages(made, 3, sample=0.25))
    sampled, everything = total(evaluation), recount(made.examples, made.scores, made.predictions)
    assert sampled.sample == 0.25
    share = sampled.seen[WHOLE][0] / everything.seen[WHOLE][0]
    assert 0.2 < share < 0.3
    for alias in (LEARNED, *ALIASES):
        mine = sampled.series[alias].tallies[WHOLE]
        covered = mine.impressions / sampled.seen[WHOLE][0]
        theirs = everything.series[alias].tallies[WHOLE].impressions / everything.seen[WHOLE][0]
        assert covered == pytest.approx(theirs, abs=0.06), alias


def test_open_minutes_are_summarized_in_turns_when_time_is_short() -> None:
    rules = replace(RULES, wait_ms=600_000)
    before, more = (messages(traffic(seed, minutes=5), seed) for seed in (6, 7))
    evaluation, exact = Evaluator(rules, SOURCES), Evaluator(rules, SOURCES)
    for offset, message in enumerate(before):
        evaluation.fold(offset, message)
    stale = evaluation.summaries()
    for offset, message in enumerate(more, len(before)):
        evaluation.fold(offset, message)
    for offset, message in enumerate(before + more):
        exact.fold(offset, message)
    truth = exact.summaries()
    changed = [begin for begin in truth if truth[begin] != stale.get(begin)]
    assert len(changed) >= 5, "too little changed: the test shows nothing"
    for _ in range(len(truth)):
        left = iter([False, True])
        found = evaluation.summaries(lambda: next(left, True))  # noqa: B023
        assert found.keys() == truth.keys()
        assert found[max(truth)] == truth[max(truth)], "the newest is always right"
    assert found == truth, "and each has had its turn"


def heartbeat(now_ms: int, standings: dict[str, tuple[int | None, bool]]) -> bytes:
    """A message without rows."""
    return pack(EvaluationRows(now_ms=now_ms, standings=standings))


def test_a_source_at_its_end_advances_with_the_wall_clock_only_during_evaluation() -> None:
    evaluation = Evaluator(RULES, ["a", "b"])
    evaluation.fold(0, heartbeat(1_000_000, {"a": (BEGIN_MS, False), "b": (BEGIN_MS, True)}))
    evaluation.fold(1, heartbeat(1_004_000, {"a": (BEGIN_MS + 50_000, False)}))
    assert evaluation.reached_ms() == BEGIN_MS + 4_000
    evaluation.fold(2, heartbeat(9_000_000, {}))
    assert evaluation.reached_ms() == BEGIN_MS + 14_000
    evaluation.fold(3, heartbeat(9_001_000, {"b": (None, False)}))
    assert evaluation.reached_ms() == BEGIN_MS, "it may have any time left: it is read again"


@pytest.mark.parametrize("begins_anew", [True, False], ids=["reader begins anew", "reader paused"])
@pytest.mark.parametrize("idle_ms", [None, BEGIN_MS], ids=["empty", "silent"])
def test_a_source_without_events_makes_up_for_an_outage(
    begins_anew: bool, idle_ms: int | None
) -> None:
    live, table = Evaluator(RULES, ["a", "b"]), dict[str, bytes]()
    outage = range(1_000, 1_600)
    for second in range(1_700):
        if second in outage:
            continue
        starts = begins_anew and second == outage.stop
        standings = {
            "a": (None if starts else BEGIN_MS + 1_000 * second, False),
            "b": (None if starts or second else idle_ms, not starts),
        }
        apply(table, live.fold(second, heartbeat(5_000_000 + 1_000 * second, standings)))
        late = outage.start <= second < outage.stop + 15
        assert late or live.reached_ms() == BEGIN_MS + 1_000 * second
    again = Evaluator(RULES, ["a", "b"])
    again.restore(table.items())
    assert again.state.closed_ms == live.state.closed_ms


def test_a_source_read_again_after_an_outage_counts_its_events_before_it_makes_up() -> None:
    evaluation = Evaluator(RULES, ["a"])
    evaluation.fold(0, heartbeat(1_000_000, {"a": (BEGIN_MS, True)}))
    evaluation.fold(1, heartbeat(1_600_000, {"a": (None, False)}))
    for second in range(1, 30):
        moved = BEGIN_MS + 1_000 * second
        evaluation.fold(1 + second, heartbeat(1_600_000 + 1_000 * second, {"a": (moved, True)}))
        assert evaluation.reached_ms() == moved


def test_an_empty_source_starts_at_the_first_event_time_of_any_source() -> None:
    evaluation = Evaluator(RULES, ["a", "b"])
    evaluation.fold(0, heartbeat(1_000_000, {"a": (BEGIN_MS, False)}))
    assert evaluation.reached_ms() is None
    evaluation.fold(1, heartbeat(1_000_500, {"a": (BEGIN_MS + 9_999, False), "b": (None, True)}))
    evaluation.fold(2, heartbeat(1_002_500, {}))
    assert evaluation.reached_ms() == BEGIN_MS + 2_000


def test_rows_of_a_closed_minute_count_as_late_and_change_no_totals() -> None:
    made = traffic(5, minutes=8)
    log = messages(made, 5)
    evaluation = folded(RULES, log)
    before = combine(evaluation.closed.values())
    rows = unpack(log[0])
    count = len(rows.shown) // 25 + len(rows.clicked) // 16
    count += len(rows.scored) // 24 + len(rows.served) // 28
    assert count > 0
    writes = evaluation.fold(len(log), log[0])
    assert evaluation.state.late == count
    assert combine(evaluation.closed.values()) == before
    table: dict[str, bytes] = {}
    apply(table, writes)
    assert unpack(table[f"rows/{len(log):020d}"]).late == count


def test_evaluation_rows_of_another_format_are_refused() -> None:
    evaluation = Evaluator(RULES, SOURCES)
    with pytest.raises(UnreadableRows, match="expected format 1, got 9"):
        evaluation.fold(0, pack(EvaluationRows(format=9)))
    with pytest.raises(UnreadableRows, match="expected MessagePack"):
        evaluation.fold(0, b"\xc1")
