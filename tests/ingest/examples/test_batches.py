"""Tests how examples are split into messages: bounded in size, time span and number."""

from dataclasses import replace

import numpy as np
import pyarrow as pa

from headrace.ingest.examples.batch import Examples, concatenate, pack
from headrace.ingest.examples.splitting import Cut, common_ends, cut, example_bytes, reached_ms
from headrace.ingest.features.encoder import Encoded


def examples(event_ms: list[int], bags: int = 0) -> Examples:
    count = len(event_ms)
    lengths = np.arange(count * bags) % 3
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    times = np.array(event_ms, np.int64)
    return Examples(
        fingerprint="f",
        watermark_ms=7,
        kinds=np.zeros(count, np.uint8),
        labels=np.arange(count).astype(np.uint8) % 2,
        event_ms=times,
        shown_ms=times - 1,
        append_ms=times + 1,
        impression_ids=pa.array([f"i{i}" for i in range(count)], pa.string()),
        request_ids=pa.array([None if i % 2 else f"r{i}" for i in range(count)], pa.string()),
        features=Encoded(
            ids=np.arange(count * 2, dtype=np.uint64).reshape(count, 2),
            bag_ids=np.arange(offsets[-1], dtype=np.uint64),
            bag_offsets=offsets,
            numbers=np.zeros((count, 1), np.float32),
        ),
        slices={"device": pa.array([str(i) for i in range(count)], pa.string())},
    )


def sizes(event_ms: list[int], rule: Cut) -> list[int]:
    return [len(part) for part in cut(examples(event_ms), rule)]


def test_a_message_of_examples_has_at_most_the_configured_number() -> None:
    assert sizes([5] * 10, Cut(most=4, span_ms=100, least=1)) == [4, 4, 2]


def test_a_message_of_examples_spans_at_most_the_configured_event_time() -> None:
    times = [0, 50, 100, 101, 150, 500, 510, 520, 700]
    parts = list(cut(examples(times), Cut(most=100, span_ms=100, least=1)))
    assert len(parts) > 3
    assert all(np.ptp(part.event_ms) <= 100 for part in parts if len(part) > 2)
    assert np.concatenate([part.event_ms for part in parts]).tolist() == times


def test_a_message_ends_where_event_time_passes_the_roundest_number() -> None:
    parts = list(cut(examples(list(range(0, 4000, 7))), Cut(span_ms=1, least=40)))
    begins = [int(part.event_ms[0]) for part in parts[1:]]
    assert [begin // 256 * 256 for begin in begins] == [512, 1024, 1536, 2048, 2560, 3072, 3584]
    assert all(begin % 256 < 7 for begin in begins)


def test_the_messages_of_several_partitions_end_at_the_same_event_times() -> None:
    random, rule = np.random.default_rng(3), Cut(span_ms=1, least=20)
    streams = [examples(np.sort(random.integers(0, 10**7, 500)).tolist()) for _ in range(8)]
    ends_ms = common_ends([reached_ms(stream) for stream in streams], rule)
    assert 8 < ends_ms.shape[0] < 40
    for stream in streams:
        parts = list(cut(stream, rule, ends_ms))
        assert len(parts) == ends_ms.shape[0] + 1
        for part, begin_ms, end_ms in zip(parts, [0, *ends_ms], [*ends_ms, 10**7], strict=True):
            assert begin_ms <= part.event_ms.min() <= part.event_ms.max() < end_ms


def test_a_full_message_does_not_divide_a_request() -> None:
    whole = examples([5] * 40)
    whole = replace(whole, request_ids=pa.array([f"r{i // 7}" for i in range(40)]))
    parts = list(cut(whole, Cut(most=12)))
    assert [len(part) for part in parts] == [7, 7, 7, 7, 12]


def test_event_time_that_goes_back_does_not_split_a_message_of_examples() -> None:
    assert sizes([100, 0, 120, 10, 201, 202], Cut(most=100, span_ms=100, least=1)) == [4, 2]


def test_sparse_examples_share_a_message_up_to_the_least_size() -> None:
    made = sizes(list(range(0, 100_000, 1_000)), Cut(most=100, span_ms=1, least=4))
    assert sum(made) == 100
    assert all(4 <= size <= 8 for size in made[:-1])


def test_a_message_holds_no_more_than_so_many_bytes() -> None:
    whole = examples([5] * 50, bags=2)
    each = example_bytes(whole)
    parts = list(cut(whole, Cut(most_bytes=500)))
    assert len(parts) > 5
    assert all(example_bytes(part).sum() <= 500 for part in parts)
    assert [len(part) for part in cut(whole, Cut(most_bytes=1))] == [1] * 50
    assert each.sum() == sum(int(example_bytes(part).sum()) for part in parts)


def test_an_empty_batch_of_examples_makes_no_message() -> None:
    assert sizes([], Cut()) == []


def test_the_messages_of_a_batch_contain_all_its_examples() -> None:
    for bags in (0, 1, 3):
        whole = examples(list(range(20)), bags)
        parts = list(cut(whole, Cut(most=7, span_ms=5, least=2)))
        assert len(parts) > 2
        assert pack(concatenate(parts)) == pack(whole)
