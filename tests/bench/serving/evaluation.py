"""Measures live evaluation on one core without Kafka, and the cost of publishing its figures.

    python -m tests.bench.evaluation [--quick] [--json]

The traffic is half an hour at 2,000 impressions a second (a tenth of it with --quick): requests of
ten candidates, batches of 2,000, one in ten clicked, scored by the learner and served by one alias,
sliced by one field of twelve values.

    gathered_impressions_per_second   example, score and prediction of an impression, from the bytes
                                      of their topics to those of the rows topic
    folded_impressions_per_second     from there into the open minutes, and to the table's bytes
    publish_seconds                   all figures of all windows, every open minute summed anew
    publish_again_seconds             the same a moment later, with one minute changed
    kilobytes_per_thousand            of impressions in the table, while their minute is open
    restore_seconds                   from the table, as after a crash
"""

import json
import time
from collections.abc import Sequence

import msgspec
import numpy as np
import pyarrow as pa

from headrace.ingest.examples.batch import Examples, Kind
from headrace.ingest.examples.batch import pack as pack_examples
from headrace.ingest.examples.batch import unpack as unpack_examples
from headrace.ingest.features.encoder import Encoded
from headrace.ingest.features.fields import FieldSet, parse_fields
from headrace.ingest.features.spec_text import SpecText
from headrace.learner.loop.scores import Scores
from headrace.learner.loop.scores import pack as pack_scores
from headrace.learner.loop.scores import unpack as unpack_scores
from headrace.serving.evaluation.evaluator import EvaluationRules, Evaluator
from headrace.serving.evaluation.messages import RowsBuilder, ServedPrediction, pack
from headrace.serving.evaluation.windows import Windows, figures
from tests.bench.bench_options import bench_parser

BATCH = 2_000
RATE_PER_S = 2_000
BEGIN_MS = 1_700_000_040_000
SOURCES = ("examples/0", "scores/0", "predictions/0")


def fields_of() -> FieldSet:
    """One field, which is also what is sliced by."""
    text = '[examples]\nslice_by = ["device"]\n[fields.device]\nnumber = 1\ntransform = "id"\n'
    where = SpecText("bench.toml", text)
    return parse_fields(where.tables(), where)


def batches(fields: FieldSet, seconds: int) -> list[tuple[int, bytes, bytes, list[bytes]]]:
    """Return (event time, examples, scores, predictions) of each second, as in Kafka."""
    dice = np.random.default_rng(1)
    made = []
    for second in range(seconds):
        time_ms = BEGIN_MS + second * 1000 * BATCH // RATE_PER_S
        names = [f"{second:08d}-{i:06d}" for i in range(BATCH)]
        requests = [f"request-{second}-{i // 10}" for i in range(BATCH)]
        clicked = np.flatnonzero(dice.random(BATCH) < 0.1)
        places = np.concatenate([np.arange(BATCH), clicked])
        count = len(places)
        times = np.full(count, time_ms, np.int64)
        kinds = np.where(np.arange(count) < BATCH, Kind.SHOWN, Kind.CLICKED).astype(np.uint8)
        ids, asked = pa.array(names), pa.array(requests)
        devices = pa.array([f"device-{i}" for i in dice.integers(0, 12, count)])
        features = Encoded(
            np.zeros((count, 1), np.uint64),
            np.zeros(0, np.uint64),
            np.zeros(1, np.int32),
            np.zeros((count, 0), np.float32),
        )
        examples = Examples(
            *(fields.fingerprint, time_ms, kinds, (kinds == Kind.CLICKED).astype(np.uint8)),
            *(times, times, times, ids.take(pa.array(places)), asked.take(pa.array(places))),
            *(features, {"device": devices}),
        )
        scores = dice.beta(2, 18, BATCH)
        served = [
            msgspec.json.encode(
                ServedPrediction(name, "bench", "champion", score, time_ms, request)
            )
            for name, request, score in zip(names, requests, scores.tolist(), strict=True)
        ]
        packed = pack_scores(Scores(ids, asked, times[:BATCH], scores))
        made.append((time_ms, pack_examples(examples), packed, served))
    return made


def measure(seconds: int) -> dict[str, float]:
    """Return the figures."""
    fields, rules = fields_of(), EvaluationRules(fields=("device",))
    made = batches(fields, seconds)
    decode = msgspec.json.Decoder(ServedPrediction).decode
    gathering = RowsBuilder(("device",), 1.0)
    began_s, messages = time.process_time(), []
    for time_ms, examples, scores, served in made:
        gathering.examples(unpack_examples(examples, fields))
        gathering.scores(unpack_scores(scores))
        for each in served:
            gathering.prediction(decode(each))
        standings: dict[str, tuple[int | None, bool]] = dict.fromkeys(SOURCES, (time_ms, False))
        messages.append(pack(gathering.take(time_ms, standings)))
    gathered_s = time.process_time() - began_s

    evaluation = Evaluator(rules, SOURCES)
    table: dict[str, bytes | None] = {}
    began_s = time.process_time()
    for offset, message in enumerate(messages[:-1]):
        table.update(evaluation.fold(offset, message))
    folded_s = time.process_time() - began_s
    publish_s = _seconds(lambda: figures(evaluation, "bench", Windows()))
    evaluation.fold(len(messages), messages[-1])
    again_s = _seconds(lambda: figures(evaluation, "bench", Windows()))
    items = [(key, value) for key, value in table.items() if value is not None]
    impressions = seconds * BATCH
    return {
        "gathered_impressions_per_second": round(impressions / gathered_s),
        "folded_impressions_per_second": round(impressions / folded_s),
        "publish_seconds": round(publish_s, 3),
        "publish_again_seconds": round(again_s, 3),
        "kilobytes_per_thousand": round(sum(len(v) for _, v in items) / impressions, 1),
        "restore_seconds": round(_seconds(lambda: Evaluator(rules, SOURCES).restore(items)), 3),
    }


def _seconds(work: object) -> float:
    began_s = time.process_time()
    work()  # type: ignore[operator]
    return time.process_time() - began_s


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = bench_parser(
        "evaluation", "Speed of live evaluation.", quick="three minutes, not thirty"
    )
    chosen = parser.parse_args(arguments)
    results = measure(180 if chosen.quick else 1_800)
    if chosen.json:
        print(json.dumps(results))
    else:
        for name, value in results.items():
            print(f"{name:34s} {value:>12,}")


if __name__ == "__main__":
    main()
