"""The decoders of messages and files, with sound bytes to mutate and the errors they declare.

A new decoder of bytes from outside gets a row here.
"""

import hashlib
import random

import numpy as np
import pyarrow as pa

from headrace.deploy.operations.live_status import figures_of, status_text
from headrace.ingest import status
from headrace.ingest.archive.archiver import event_table
from headrace.ingest.dead_letters import letter
from headrace.ingest.dead_letters.repairs import BadRepair, FileRepairs, as_line
from headrace.ingest.errors import BadCheckpoint
from headrace.ingest.examples import batch as examples
from headrace.ingest.examples.splitting import part_of
from headrace.ingest.features.spec_text import SpecError
from headrace.ingest.joiner.committed_state import SavedCheckpoint, load_checkpoint
from headrace.ingest.joiner.core.input import EventSide
from headrace.ingest.kafka.protocols import Record, Source
from headrace.ingest.logs import layout
from headrace.learner.loop import scores
from headrace.learner.spec.model_spec import parse_spec
from headrace.pserver.errors import CorruptEntry
from headrace.pserver.relay import relay_block
from headrace.pserver.relay.relay_section import RelayedColumns
from headrace.pserver.rows import deltas
from headrace.pserver.rows.row_codec import FoldedRows
from headrace.pserver.snapshots import bucket_file, manifest
from headrace.serving.deployments.deployment_records import Deployments, alias_change, model_change
from headrace.serving.evaluation import messages, window_pane
from tests.fuzzing.isolated import Decoder
from tests.fuzzing.mutation import mutants_of
from tests.ingest.joiner.partition import T0_MS, Partition, clicked, fields_of, records, shown, tick
from tests.learner.shipped_specs import MODELS

_WEIGHTED = 'weight = "w"\nnegative_rate = 0.5'
_FIELDS = fields_of(examples=_WEIGHTED)
_WIDTH = 4


def _examples() -> list[bytes]:
    partition = Partition(examples=_WEIGHTED)
    impressions = [
        shown(f"i{i}", i, user=i, tags=[*range(i % 3)], device="d", w=1 + i) for i in range(9)
    ]
    clicks = [clicked(f"i{i}", i) for i in range(0, 9, 2)]
    for side, values in ((EventSide.IMPRESSIONS, impressions), (EventSide.CLICKS, clicks)):
        partition.offer(side, records(side, [*values, tick(1000)]))
    joined = partition.joiner.advance(0).examples
    return [examples.pack(joined), examples.pack(joined, examples.BatchNotes('{"x":1}', "y"))]


def _use_examples(blob: bytes) -> None:
    found = examples.unpack(blob, _FIELDS)
    examples.notes_of(blob)
    count, features = len(found), found.features
    bags = count * len(_FIELDS.bags)
    offsets = features.bag_offsets
    assert offsets.shape == (bags + 1,) and (np.diff(offsets) >= 0).all()
    assert (offsets[0], offsets[-1]) == (0, features.bag_ids.shape[0])
    assert (found.kinds <= max(examples.Kind)).all() and (found.labels <= 1).all()
    for column in (found.event_ms, found.shown_ms, found.append_ms):
        assert column.dtype == np.int64 and column.shape == (count,)
    assert features.ids.dtype == np.uint64 and features.numbers.dtype == np.float32
    if count:
        last = part_of(examples.reordered(found, np.arange(count)[::-1]), 0, (count + 1) // 2)
        examples.concatenate([last, found])
        found.impression_ids.to_pylist(), found.request_ids.to_pylist()


def _scores() -> list[bytes]:
    ids = pa.array(["a", "é", ""], pa.string())
    return [scores.pack(scores.Scores(ids, ids, np.arange(3), np.array([0.1, 0.5, 1.0])))]


def _entries() -> list[bytes]:
    made = []
    for width, rows in ((3, 4), (1, 0), (0, 3)):
        ids, counts = np.arange(rows, dtype=np.uint64), np.arange(rows, dtype=np.uint32)
        values = np.zeros((rows, width), np.float32)
        content = deltas.RowDeltas(ids, counts, counts, counts, counts, values)
        reached = [deltas.SourceReached("t/0", 0, 5, 1, [(1, 2)])]
        made.append(deltas.pack(deltas.EntryHeader(width, rows, 1, 1, reached), content))
    gone = deltas.Deletions(np.arange(2, dtype=np.uint64), np.arange(2, dtype=np.uint32))
    header = deltas.EntryHeader(0, 2, 1, 1, [], deltas.DELETING_FORMAT)
    return [*made, deltas.pack(header, gone)]


def _rows(count: int) -> FoldedRows:
    ids, seen = np.arange(count, dtype=np.uint64), np.arange(count, dtype=np.uint32)
    return FoldedRows(ids, ids, ids, seen, seen, np.ones((count, _WIDTH), np.float32))


def _blocks() -> list[bytes]:
    at = relay_block.RelayPosition(2, b"12345678")
    header = relay_block.BlockHeader("fp", 0, _WIDTH, 3, at, at, 1, 1, [], [])
    kept = (RelayedColumns.all(_WIDTH), RelayedColumns((0, 2), True, ("shows",)))
    return [relay_block.pack_block(header, _rows(3), each) for each in kept]


def _use_block(blob: bytes) -> None:
    header = relay_block.block_header(blob)
    if header.width == _WIDTH:  # as a reader compares first
        relay_block.block_rows(blob, header)


def _manifests() -> list[bytes]:
    file = manifest.BucketFile(
        *(0, 5, "ab", {"t/0": 5}, 3, 1, 1, 1, 1, "bucket-0.parquet", 10, "ff", "cc")
    )
    name = "20260101T000000.000Z-news-0001"
    made = manifest.Manifest(name, "news", "[model]", "fp", 3, 1, 4, 1, 2, "1", [file])
    return [manifest.encode(made)]


def _resealed(dice: random.Random) -> bytes:
    """Return a mutant; most have the digest of their own bytes, as one made on purpose would."""
    blob = mutants_of(_manifests(), text=True)(dice)
    body = blob[blob.find(b'"manifest":') + 11 : -1]
    digest = hashlib.sha256(body).hexdigest().encode()
    return blob if dice.random() < 0.3 else b'{"sha256":"%s","manifest":%s}' % (digest, body)


def _use_manifest(blob: bytes) -> None:
    found = manifest.decode(blob)
    assert (found.shape.buckets, found.rows, found.newest_event_ms) is not None


def _use_file(blob: bytes) -> None:
    for rows in bucket_file.unpack(blob, _WIDTH):
        rows.checksum()


def _checkpoint() -> bytes:
    joiner = Partition().joiner
    saved = SavedCheckpoint("fields", ("impressions", "clicks"), joiner.checkpoint(), (1, 2), "n")
    return saved.to_json().encode()


def _letters() -> list[bytes]:
    source = Source("impressions", 0)
    values = ((b'{"a":1}', b"k"), (b"\xff\x00", None), (b"\xfe", b"\xfe"))
    made = [letter.pack(Record(source, 5, 7, *each), "reason") for each in values]
    origin = letter.Origin("clicks", 1, 2, 3)
    return [
        *made,
        letter.pack_settled(letter.SettledLetters(retried=(origin,), discarded=(origin,))),
    ]


def _use_letter(blob: bytes) -> None:
    found = letter.unpack(blob)
    if isinstance(found, letter.Letter):
        str((found.reason_name, found.origin))
        FileRepairs([as_line(found)], "file")


def _statuses() -> list[bytes]:
    samples = [
        status.MetricSample(name, {"model": "m", "partition": "0", "reason": "x"}, 1.5)
        for name in (
            *("headrace_joiner_impressions_total", "headrace_learner_examples_total"),
            *("headrace_joiner_dead_letters_total", "headrace_learner_lag"),
        )
    ]
    return [status.pack(status.ProcessStatus("joiner", "a", T0_MS, samples))]


def _use_status(blob: bytes) -> None:
    status_text(figures_of([status.unpack(blob)], T0_MS))


def _use_deployment(blob: bytes) -> None:
    key, _, value = blob.partition(b"\n")
    Deployments().after(key, value)


def _evaluation_rows() -> list[bytes]:
    return [messages.pack(messages.EvaluationRows(now_ms=1, standings={"a/0": (5, True)}))]


def _summaries() -> list[bytes]:
    return [window_pane.pack(window_pane.PaneSummary())]


def _text(blob: bytes) -> str:
    return blob.decode("utf-8", "replace")


def message_decoders() -> list[Decoder]:
    """Return the table."""
    specs = [path.read_bytes() for path in sorted(MODELS.glob("*.toml"))]
    layouts = [
        path.read_bytes() for path in sorted(MODELS.parents[1].glob("ingest/logs/layouts/*.toml"))
    ]
    changes = [f"{key.decode()}\n".encode() + (value or b"") for key, value in (
        model_change("news", "[model]"), alias_change("production", "news"),
    )]  # fmt: skip
    packed = bucket_file.pack(_rows(200))
    return [
        Decoder("examples", mutants_of(_examples()), _use_examples, (examples.UnreadableExamples,)),
        Decoder("scores", mutants_of(_scores()), scores.unpack, (scores.UnreadableScores,)),
        Decoder("log entry", mutants_of(_entries()), deltas.unpack_entry, (CorruptEntry,)),
        Decoder("relay block", mutants_of(_blocks()), _use_block, (CorruptEntry,)),
        Decoder("manifest", _resealed, _use_manifest, (manifest.BadManifest,)),
        Decoder("bucket file", mutants_of([packed]), _use_file, (CorruptEntry,)),
        Decoder(
            "model spec",
            mutants_of(specs, text=True),
            lambda blob: parse_spec(_text(blob), "x.toml"),
            (SpecError,),
            0.05,
        ),
        Decoder(
            "layout",
            mutants_of(layouts, text=True),
            lambda blob: layout.parse_layout(_text(blob), "x.toml"),
            (SpecError,),
            0.3,
        ),
        Decoder(
            "checkpoint",
            mutants_of([_checkpoint()], text=True),
            lambda blob: load_checkpoint(_text(blob), "fields", "x/0"),
            (BadCheckpoint,),
        ),
        Decoder("dead letter", mutants_of(_letters(), text=True), _use_letter, (BadRepair,)),
        Decoder(
            "status", mutants_of(_statuses(), text=True), _use_status, (status.UnreadableStatus,)
        ),
        Decoder("deployment", mutants_of(changes, text=True), _use_deployment),
        Decoder(
            "evaluation rows",
            mutants_of(_evaluation_rows()),
            messages.unpack,
            (messages.UnreadableRows,),
        ),
        Decoder(
            "minute of evaluation",
            mutants_of(_summaries()),
            window_pane.unpack,
            (window_pane.UnreadableSummary,),
        ),
        Decoder(
            "archived event",
            mutants_of([shown("i", 1, user="u", request_id="r")], text=True),
            lambda blob: event_table([Record(Source("impressions", 0), 0, 0, blob)]),
        ),
    ]
