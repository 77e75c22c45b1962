"""Tests the pure core on a week of real traffic: every impression and click is counted."""

import io
from pathlib import Path

import pytest
import zstandard

from headrace.ingest.features.fields import LabelPolicy, Policy, parse_fields
from headrace.ingest.features.spec_text import SpecText
from headrace.ingest.joiner.core.input import ChunkReader, EventSide
from headrace.ingest.joiner.core.join import PartitionJoiner
from headrace.ingest.kafka.protocols import MessageBlock, Record, Source
from tests.ingest.joiner.partition import LONG_AGO_MS, committed_checkpoint

WEEK = Path(__file__).parents[3].parent / "shared" / "data" / "ebnerd_week1"
SHOWN, CLICKED = 278_139, 24_829
WINDOW_S = {Policy.IMMEDIATE: 1800, Policy.WINDOW: 600}
LATE = {Policy.IMMEDIATE: 0, Policy.WINDOW: 150}
_CHUNK = 4096
_SPEC = """
[label]
policy = "{policy}"
window_s = {window_s}
[fields.user]
number = 1
transform = "id"
source = "user_id"
[fields.article]
number = 2
transform = "id"
source = "article_id"
"""

pytestmark = pytest.mark.skipif(
    not WEEK.is_dir(), reason="the sample week is not here: it is kept outside the repository"
)


def _records(name: str) -> list[Record]:
    with (WEEK / f"{name}.ndjson.zst").open("rb") as packed:
        lines = io.BytesIO(zstandard.ZstdDecompressor().stream_reader(packed).read())
    source = Source(name, 0)
    values = [*(line.rstrip() for line in lines), b'{"timestamp_ms":1690000000000}']
    return [Record(source, offset, LONG_AGO_MS, value) for offset, value in enumerate(values)]


@pytest.mark.parametrize("policy", list(Policy))
def test_the_sample_week_is_joined_exactly_over_restarts(policy: Policy) -> None:
    where = SpecText("m", _SPEC.format(policy=policy.value, window_s=WINDOW_S[policy]))
    fields = parse_fields(where.tables(), where)
    assert fields.label == LabelPolicy(policy, WINDOW_S[policy])
    reader = ChunkReader(fields)
    streams = {EventSide.IMPRESSIONS: _records("impressions"), EventSide.CLICKS: _records("clicks")}
    nexts = dict.fromkeys(streams, 0)
    joiner = PartitionJoiner(fields)
    shows = clicks = rounds = 0
    while True:
        for side, records in streams.items():
            if joiner.queued(side) < _CHUNK and nexts[side] < len(records):
                chunk = records[nexts[side] : nexts[side] + _CHUNK]
                joiner.offer(reader.read(side, MessageBlock.of(chunk)))
                nexts[side] += len(chunk)
        joined = joiner.advance(0)
        assert not joined.dead
        kinds, labels = joined.examples.kinds, joined.examples.labels
        shows += int((kinds != 1).sum())
        clicks += int(labels.sum())
        rounds += 1
        if rounds % 20 == 0:  # killed and restarted
            checkpoint = committed_checkpoint(joiner)
            joiner = PartitionJoiner(fields)
            joiner.restore(checkpoint)
            nexts = {EventSide.IMPRESSIONS: checkpoint.shown.rewind}
            nexts[EventSide.CLICKS] = checkpoint.clicked.rewind
        elif joined.taken == 0 and nexts == {s: len(each) for s, each in streams.items()}:
            break
    counters = joiner.counters
    assert (shows, counters.impressions) == (SHOWN, SHOWN)
    late = counters.late_clicks + counters.unmatched_clicks
    assert clicks + late == counters.clicks == CLICKED
    assert late == LATE[policy]
    assert counters.duplicates == counters.dead_letters == 0
    assert rounds > 60
