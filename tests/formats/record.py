"""Writes the golden files of the present formats: `python -m tests.formats.record`.

Run it for a new folder of a new format only, never to make a test of an old one pass. The events
come from a fixed seed, and all else from the product's own code.
"""

import json
import shutil
from collections.abc import Mapping, Sequence

from headrace.ingest.archive.archiver import Archiver, ArchiveSettings
from headrace.ingest.archive.parquet_folder import ArchiveFolder
from headrace.ingest.dead_letters.letter import Letter, SettledLetters, pack_settled, unpack
from headrace.ingest.kafka.fakes import ListReader, ListTransactions
from headrace.ingest.kafka.protocols import Record, Source
from headrace.pserver.keeper.bucket_lease import FoldPolicy
from headrace.pserver.keeper.expiry import Expiry
from headrace.pserver.redis_backend.redis_store import RedisStore
from headrace.pserver.relay.log_relay import LogRelay
from headrace.pserver.relay.relay_section import RelayedColumns
from headrace.pserver.snapshots.storage import SnapshotStorage
from headrace.serving.deployments.deployment_records import alias_change, model_change
from headrace.serving.models.aliases import Aliases
from tests.embedded_valkey.server import EmbeddedValkey
from tests.formats import golden
from tests.formats.small_model import (
    BUCKETS,
    CANDIDATES,
    NOW_MS,
    DoubtfulGuard,
    decoded_message,
    example_records,
    following_examples,
    joined,
    learn,
    predictions,
    spec_of,
)
from tests.ingest.events_of import TOPICS, WINDOW_MS, Happened, happen
from tests.ingest.joiner.joiner_run import EXAMPLES, PARTITIONS
from tests.learner.in_memory import InMemoryModel
from tests.pserver.snapshots.snapshot_world import taken

SPEC = """\
[model]
name = "test"
architecture = "logistic_regression"

[fields.article]
number = 1
transform = "id"

[fields.words]
number = 2
transform = "bag"

[fields.price]
number = 3
transform = "number"

[label]
policy = "{policy}"
window_s = 60

[examples]
slice_by = ["device"]
negative_rate = 0.5
"""
_EVENTS = 120
_CUT_MS = 300_000
"""The events of the first five minutes are joined, and learned, before the files are recorded."""

_MOST_ROWS = 24
"""Fewer than the model has, so that a keeper deletes some."""

Records = Mapping[Source, Sequence[Record]]


def main() -> None:
    """Replace the golden files."""
    shutil.rmtree(golden.V1, ignore_errors=True)
    golden.V1.mkdir()
    for policy in ("immediate", "window"):
        (golden.V1 / f"{policy}.toml").write_text(SPEC.format(policy=policy))
    records = _priced(happen(33, _EVENTS, PARTITIONS)).records(TOPICS, PARTITIONS)
    first_ms = min(each.append_ms for own in records.values() for each in own)
    early = {
        source: [each for each in own if each.append_ms < first_ms + _CUT_MS]
        for source, own in records.items()
    }
    golden.write("events.json", golden.of_records(each for own in records.values() for each in own))
    for policy in ("immediate", "window"):
        _record_joiner(policy, early, records)
    _record_dead_letters()
    _record_store()
    _record_aliases()
    _record_archive(early)
    size = sum(path.stat().st_size for path in golden.V1.rglob("*") if path.is_file())
    print(f"{golden.V1}: {size:,} bytes")


def _priced(happened: Happened) -> Happened:
    """Give the impressions a number, too."""
    for place, (at, partition, value) in enumerate(happened.shown):
        if b'"article"' in value:
            event = {**json.loads(value), "price": place % 7 / 4}
            happened.shown[place] = at, partition, json.dumps(event).encode()
    return happened


def _record_joiner(policy: str, early: Records, records: Records) -> None:
    fields = spec_of(policy).fields
    transactions = joined(early, ListTransactions(), policy)
    content = golden.of_transactions(transactions)
    decoded = []
    for target, value, _ in transactions.written:
        if target.topic == EXAMPLES:
            decoded.append(decoded_message(value, fields))
    begin = len(transactions.written)
    joined(records, transactions, policy)
    name = f"joined_{policy}"
    golden.write(f"{name}.json", content)
    golden.write(f"{name}_decoded.json", decoded)
    golden.write(f"{name}_following.json", following_examples(transactions.written[begin:], fields))
    if policy == "immediate":
        following = golden.of_transactions(transactions)["messages"][begin:]
        golden.write("examples_following.json", following)


def _record_dead_letters() -> None:
    content = golden.read("joined_immediate.json")
    written = golden.transactions_of(content).history(Source(TOPICS.dead_letters, 0))
    values = [*written]
    letters = [each for each in map(unpack, values) if isinstance(each, Letter)]
    retried, discarded = letters[0].origin, letters[-1].origin
    values.append(pack_settled(SettledLetters(retried=(retried,), discarded=(discarded,))))
    golden.write(
        "dead_letters.json",
        {
            "messages": [golden.text_of(value) for value in values],
            "reasons": [each.reason_name for each in letters],
            "origins": [list(each.origin) for each in letters],
            "events": [golden.text_of(each.event_bytes) for each in letters],
            "retried": [list(retried)],
            "discarded": [list(discarded)],
        },
    )


def _record_store() -> None:
    """Record a store with folded rows, a log of deltas and deletions, and a parked message."""
    spec = spec_of("immediate")
    joined_first = golden.read("joined_immediate.json")
    records = example_records(joined_first)
    server = EmbeddedValkey(lambda: model.now_ms)
    nonces = iter(range(1, 1_000))
    store = RedisStore(
        server,  # type: ignore[arg-type]  # takes the place of the client
        spec.name,
        sub_hashes=2,
        nonces=lambda: next(nonces).to_bytes(8, "little"),
    )
    model = InMemoryModel.__new__(InMemoryModel)
    model.now_ms = 1_000
    InMemoryModel.__init__(model, spec, BUCKETS, store)
    for stop in (2, 4):
        learn(model, [each for each in records if each.offset < stop])
    _fold_and_delete(model)
    last = max(each.offset for each in records if each.source.partition == 0)
    learn(model, records, DoubtfulGuard(Source(EXAMPLES, 0), last))
    keys = golden.of_keys(server.keyspace.values)
    _record_snapshot(store)
    relay = LogRelay(store, model.replica(), RelayedColumns.all(spec.width))
    blocks, found = _blocks(relay), predictions(spec, model.replica())
    following = golden.read("examples_following.json")
    messages = [*joined_first["messages"], *following]
    begin = len(model.written.sent)
    scores = learn(model, example_records({"messages": messages}))
    sent = [golden.text_of(each.value) for each in model.written.sent[begin:]]
    golden.write("store.json", keys)
    golden.write("predictions.json", {"candidates": CANDIDATES, "scores": found})
    golden.write("scores.json", {"messages": sent, "scores": scores})
    later = predictions(spec, model.replica())
    golden.write("relay.json", {"bases": blocks, "changes": _blocks(relay), "scores": later})


def _fold_and_delete(model: InMemoryModel) -> None:
    """Fold and trim the log, then delete the oldest rows beyond a limit."""
    expiry = Expiry(interval_ms=1_000)
    keeper = model.keeper(FoldPolicy(keep_ms=0, keep_bytes=0, expiry=expiry))
    for _ in range(100):
        model.now_ms += 100
        if model.now_ms > 5_000 and not model.store.row_limit():
            model.store.limit_rows(_MOST_ROWS)
        keeper.step()
    keeper.release()


def _blocks(relay: LogRelay) -> list[str]:
    while relay.step():
        pass
    return [golden.text_of(block) for _, block in relay.blocks()]


def _record_snapshot(store: RedisStore) -> None:
    folder = golden.V1 / "snapshots"
    taken(store, SnapshotStorage(str(folder)), at_ms=NOW_MS)


def _record_aliases() -> None:
    aliases = Aliases(["news", "news-2"], {}, lambda: NOW_MS, golden.V1 / "aliases.json")
    aliases.switch("production", "news")
    aliases.switch("production", "news=95 news-2=5")
    aliases.switch("shadow", "news-2")
    changes = (
        model_change("test", SPEC.format(policy="immediate")),
        alias_change("production", "news=95 news-2=5"),
        model_change("gone", "[model]"),
        model_change("gone", None),
    )
    golden.write("deployments.json", [[*map(golden.text_of, each)] for each in changes])


def _record_archive(early: Records) -> None:
    """Record the Parquet files and the progress of an archiver that has read these events."""
    folder = ArchiveFolder(str(golden.V1 / "archive"))
    examples = golden.transactions_of(golden.read("joined_window.json"))
    found = {
        Source(EXAMPLES, partition): [
            Record(Source(EXAMPLES, partition), offset, NOW_MS + WINDOW_MS, value)
            for offset, value in enumerate(examples.history(Source(EXAMPLES, partition)))
        ]
        for partition in range(PARTITIONS)
    }
    archiver = Archiver(ListReader({**early, **found}), folder, EXAMPLES, ArchiveSettings())
    for _ in range(20):
        archiver.step(0.0)
    archiver.finish()
    folder.close()


if __name__ == "__main__":
    main()
