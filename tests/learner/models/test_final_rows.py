"""Relayed final weights score as the rows they come from, up to the precision they have."""

import numpy as np
import pytest

from headrace.ingest.features.encoder import Encoder
from headrace.learner.errors import NoUncertainty
from headrace.learner.models.factory import open_model
from headrace.learner.models.final_rows import FinalRows
from headrace.learner.spec.model_spec import parse_spec
from headrace.pserver.errors import StoreError
from headrace.pserver.relay.relay_block import (
    BlockHeader,
    RelayPosition,
    block_header,
    block_rows,
    pack_block,
)
from headrace.pserver.relay.relayed_replica import Relayed, RelayedReplica
from headrace.pserver.rows.row_codec import FoldedRows
from headrace.pserver.rows.table import RowTable
from headrace.pserver.store import Shape
from tests.article_fields import ARTICLE_FIELDS

NOW_S = 1_760_000_000
OPTIMIZERS = {
    "ftrl": 'name = "ftrl"\nalpha = 0.15\nl1 = 0.5\nl2 = 4.0',
    "coin": 'name = "coin"\nalpha = 0.5',
    "adagrad": 'name = "adagrad"\ndecay_per_day = 0.1',
    "adam": 'name = "adam"',
    "sgd": 'name = "sgd"',
}
ARCHITECTURES = [
    ("logistic_regression", "ftrl", None),
    ("factorization_machine", "coin", "coin"),
    ("factorization_machine", "adagrad", "ftrl"),
    ("factorization_machine", "sgd", "adam"),
    ("deepfm", "ftrl", "adagrad"),
]


def spec_text(architecture: str, weights: str, embeddings: str | None) -> str:
    text = f'[model]\nname = "news"\narchitecture = "{architecture}"\n'
    text += "dimensions = 9\n" if embeddings else ""
    text += f"{ARTICLE_FIELDS}\n[fields.topics]\nnumber = 5\ntransform = 'bag'\n"
    text += "pooling = 'mean'\nlearned_weights = true\n" if weights == "coin" or embeddings else ""
    text += "[statistics.article_rate]\nnumber = 40\nstatistic = 'rate'\nof = 'article'\n"
    text += f"[calibration]\nkind = 'platt'\n[optimizer]\n{OPTIMIZERS[weights]}\n"
    return text + (f"[optimizer.embeddings]\n{OPTIMIZERS[embeddings]}\n" if embeddings else "")


def learned_rows(width: int, ids: list[int]) -> FoldedRows:
    """Rows as optimizers leave them: values of either sign, then sums that are not negative."""
    dice, count = np.random.default_rng(1), len(ids)
    values = dice.gamma(1.0, 3.0, (count, width)).astype(np.float32)
    values[:, 0] = dice.normal(0, 1, count)
    seen = dice.integers(1, 100, (2, count)).astype(np.uint64)
    seconds = (NOW_S - dice.integers(1, 90_000, count)).astype(np.uint32)
    all_ids, shows = np.array(ids, np.uint64), seen[0] + seen[1]
    return FoldedRows(all_ids, shows, seen[1], seconds, seconds.copy(), values / np.float32(8))


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize(("architecture", "weights", "embeddings"), ARCHITECTURES)
def test_final_weights_score_as_the_rows_they_come_from(
    architecture: str, weights: str, embeddings: str | None, *, half: bool
) -> None:
    spec = parse_spec(spec_text(architecture, weights, embeddings), "news.toml")
    model, final = open_model(spec), FinalRows(spec, half=half)
    events = [
        {"article_id": f"a{k}", "topics": ["t1", f"t{k}"], "user_id": f"u{k}"} for k in range(20)
    ]
    features = Encoder(spec.fields).encode(events)
    event_ms = np.full(len(features), 1000 * NOW_S, np.int64)
    asked, table = model.required_rows, RowTable(spec.width)
    table.put(learned_rows(spec.width, [*asked.always, *asked.of_features(features)]))
    named = asked.of_statistics(table, features, event_ms)
    table.put(learned_rows(spec.width, named.tolist()))
    rows = table.take(table.find(table.ids))

    shape = Shape(spec.name, 1, spec.width, spec.fingerprint, spec.text)
    at = RelayPosition(1, b"12345678")
    header = BlockHeader(shape.fingerprint, 0, shape.width, 0, None, at, 0, 0, [], [])
    blob = pack_block(header, rows, final.form)
    reader = RelayedReplica(shape, restored=final.restored)
    assert isinstance(reader.take(blob), Relayed)
    assert len(reader.table) == len(table)

    def log_odds(view: RowTable) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        scores = model.predict(view, features, event_ms)
        return np.asarray(np.log(scores / (1.0 - scores)))

    assert log_odds(reader.table) == pytest.approx(log_odds(table), abs=2e-2 if half else 1e-4)
    try:
        exact = model.uncertainty(table, features, event_ms)
    except NoUncertainty:
        pass
    else:
        found = model.uncertainty(reader.table, features, event_ms)
        assert found == pytest.approx(exact, rel=1e-3)
    with pytest.raises(StoreError, match="expected rows as they are, got final weights"):
        RelayedReplica(shape).take(blob)


def test_rows_that_are_gone_and_weights_of_zero_are_told_apart() -> None:
    spec = parse_spec(spec_text("logistic_regression", "ftrl", None), "news.toml")
    final = FinalRows(spec, half=True)
    user = 2  # no statistic reads the counters of users
    rows = learned_rows(spec.width, [1024 + user, 2048 + user, 4096 + user])
    rows.values[0] = 0.1, 3.0  # below l1
    for column in (rows.shows, rows.clicks, rows.last_seen, rows.values):
        column[1] = 0
    rows.first_seen[1] = 0xFFFFFFFF
    at = RelayPosition(1, b"12345678")
    header = BlockHeader("fingerprint", 0, spec.width, 0, None, at, 0, 0, [], [])
    blob = pack_block(header, rows, final.form)
    found = block_header(blob)
    back = block_rows(blob, found)
    assert (found.format, [each.gone for each in found.sections]) == (2, [True, False])
    assert dict(zip(back.ids.tolist(), back.exist().tolist(), strict=True)) == {
        1024 + user: True,
        2048 + user: False,
        4096 + user: True,
    }
    assert final.restored(back).values[back.ids == 1024 + user, 0] == 0.0
    assert sum(each.rows * (8 + 2 * len(each.columns)) for each in found.sections) == 8 + 2 * 12
