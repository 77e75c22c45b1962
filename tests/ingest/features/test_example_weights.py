"""Tests the weights of examples: a field of the impression, and down-sampling of negatives."""

import numpy as np
import pytest

from headrace.ingest.events.contract import Reason
from headrace.ingest.examples.batch import Examples, concatenate, pack, unpack
from headrace.ingest.features.spec_text import SpecError
from headrace.ingest.joiner.core.input import EventSide
from tests.ingest.joiner.partition import Partition, clicked, fields_of, records, shown, tick

END = tick(1000)
WEIGHT = 'weight = "worth"'


def _examples(partition: Partition, impressions: list[bytes], clicks: list[bytes]) -> Examples:
    for side, values in ((EventSide.IMPRESSIONS, impressions), (EventSide.CLICKS, clicks)):
        partition.offer(side, records(side, [*values, END]))
        partition.joiner.ended(side)
    parts = []
    while (joined := partition.joiner.advance(0)).taken or len(joined.examples):
        parts.append(joined.examples)
    return concatenate(parts)


def _weights(examples: Examples) -> dict[tuple[str, int], float]:
    assert examples.weights is not None
    assert examples.weights.dtype == np.float32
    keys = zip(examples.impression_ids.to_pylist(), examples.labels.tolist(), strict=True)
    return dict(zip(keys, examples.weights.tolist(), strict=True))


def test_both_examples_of_an_impression_have_the_weight_of_its_field() -> None:
    partition = Partition(examples=WEIGHT)
    impressions = [shown("a", 0, worth=2.5, price=7), shown("b", 1, worth=0), shown("c", 2)]
    examples = _examples(partition, impressions, [clicked("a", 3), clicked("c", 4)])
    found = {("a", 0): 2.5, ("b", 0): 0.0, ("c", 0): 1.0, ("a", 1): 2.5, ("c", 1): 1.0}
    assert _weights(examples) == found
    assert examples.features.numbers[:, 0].tolist() == [7.0, 0.0, 0.0, 7.0, 0.0]


@pytest.mark.parametrize("worth", ["two", "", "NaN", [2], -1, 1e7, True, "1e400", float("-1e-9")])
def test_an_impression_with_an_invalid_weight_becomes_a_dead_letter(worth: object) -> None:
    partition = Partition(examples=WEIGHT)
    impressions = [shown("a", 0, worth=worth), shown("b", 1, worth="3"), shown("c", 2, worth=None)]
    partition.offer(EventSide.IMPRESSIONS, records(EventSide.IMPRESSIONS, [*impressions, END]))
    partition.offer(EventSide.CLICKS, records(EventSide.CLICKS, [END]))
    joined = partition.joiner.advance(0)
    assert _weights(joined.examples) == {("b", 0): 3.0, ("c", 0): 1.0}
    [dead] = joined.dead
    assert (dead.record.value, dead.reason) == (impressions[0], Reason.BAD_WEIGHT)


def test_messages_keep_weights_and_batches_without_weights_are_unchanged() -> None:
    partition = Partition(examples=WEIGHT)
    examples = _examples(partition, [shown("a", 0, worth=0.1), shown("b", 1)], [])
    back = unpack(pack(examples), partition.fields)
    assert _weights(back) == _weights(examples)
    plain = _examples(Partition(), [shown("a", 0, worth=0.1)], [])
    assert plain.weights is None
    assert unpack(pack(plain), fields_of()).weights is None


def test_a_spec_without_weights_keeps_its_fingerprint() -> None:
    assert fields_of().fingerprint == "e472b7963e0dd47e"
    others = {fields_of(examples=each).fingerprint for each in (WEIGHT, "negative_rate = 0.5")}
    assert len(others | {fields_of().fingerprint}) == 3


@pytest.mark.parametrize(
    "wrong", ["weight = 3", 'weight = ""', "negative_rate = 0", "negative_rate = 1.5"]
)
def test_an_invalid_setting_of_weights_is_refused_by_name(wrong: str) -> None:
    with pytest.raises(SpecError, match=wrong.split(maxsplit=1)[0]):
        fields_of(examples=wrong)


def _many(count: int, rate: float, policy: str, first: int = 0) -> tuple[Partition, Examples]:
    """Join impressions, every fifth clicked, with down-sampling of negatives."""
    partition = Partition(policy, f"negative_rate = {rate}")
    names = [f"i{i}" for i in range(first, count)]
    impressions = [shown(name, i // 50) for i, name in enumerate(names)]
    clicks = [clicked(name, i // 50 + 1) for i, name in enumerate(names) if i % 5 == 0]
    return partition, _examples(partition, impressions, clicks)


@pytest.mark.parametrize("policy", ["immediate", "window"])
@pytest.mark.parametrize("rate", [0.5, 0.1])
def test_down_sampling_keeps_all_clicks_and_weighs_the_kept_negatives(
    policy: str, rate: float
) -> None:
    count = 4000
    partition, examples = _many(count, rate, policy)
    _, whole = _many(count, 1.0, policy)
    negatives = examples.labels == 0
    assert int(examples.labels.sum()) == int(whole.labels.sum()) == count // 5
    assert examples.weights is not None
    assert np.all(examples.weights[~negatives] == 1.0)
    np.testing.assert_allclose(examples.weights[negatives], 1.0 / rate)
    all_negatives = int((whole.labels == 0).sum())
    spread = np.sqrt(all_negatives * rate * (1 - rate))
    assert abs(int(negatives.sum()) - rate * all_negatives) < 4 * spread
    counters = partition.joiner.counters
    assert counters.examples == len(examples)
    assert counters.dropped_negatives == len(whole) - len(examples)
    assert examples.negative_rate == rate
    assert unpack(pack(examples), partition.fields).negative_rate == rate


def test_the_choice_of_kept_negatives_depends_on_impression_ids_alone() -> None:
    _, examples = _many(2000, 0.5, "immediate")
    _, later = _many(2000, 0.5, "immediate", first=700)
    _, closed = _many(2000, 0.5, "window")

    def kept(found: Examples) -> set[str]:
        negatives = np.flatnonzero(found.labels == 0)
        return set(found.impression_ids.take(negatives).to_pylist())

    ids = kept(examples)
    assert kept(later) == {each for each in ids if int(each[1:]) >= 700}
    assert kept(closed) <= ids
    _, fewer = _many(2000, 0.1, "immediate")
    assert kept(fewer) <= ids


def test_a_click_of_a_dropped_impression_is_learned_and_counted_once() -> None:
    partition = Partition(examples="negative_rate = 0.0001")
    examples = _examples(partition, [shown("a", 0)], [clicked("a", 1), clicked("a", 2)])
    assert _weights(examples) == {("a", 1): 1.0}
    counters = partition.joiner.counters
    assert (counters.examples, counters.dropped_negatives) == (1, 1)
    assert (counters.clicks, counters.duplicate_clicks) == (2, 1)


def test_a_restarted_joiner_drops_the_same_negatives() -> None:
    values = [shown(f"i{i}", i) for i in range(300)]
    whole, broken = (Partition("window", "negative_rate = 0.3") for _ in range(2))
    expected = whole.join([*values, END], [END])
    broken.offer(EventSide.IMPRESSIONS, records(EventSide.IMPRESSIONS, values)[:150])
    broken.joiner.ended(EventSide.IMPRESSIONS)
    broken.offer(EventSide.CLICKS, records(EventSide.CLICKS, [END]))
    made = broken.advance()
    checkpoint = broken.joiner.checkpoint()
    again = Partition("window", "negative_rate = 0.3")
    again.joiner.restore(checkpoint)
    made += again.join([*values, END], [END])
    assert made == expected
    assert again.joiner.counters == whole.joiner.counters
    assert 0 < again.joiner.counters.dropped_negatives < 300
