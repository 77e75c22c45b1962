"""A feeder on lists: each batch is written once, across aborts, rebalances and crashes."""

from collections.abc import Callable
from dataclasses import replace

import msgspec
import pytest

from headrace.ingest.errors import KafkaUnreachable, TransactionAborted
from headrace.ingest.examples.batch import Examples
from headrace.ingest.examples.batch import pack as pack_examples
from headrace.ingest.features.fields import FieldSet, parse_fields
from headrace.ingest.features.spec_text import SpecText
from headrace.ingest.kafka.fakes import ListReader, ListTransactions, memory_ports
from headrace.ingest.kafka.protocols import Committed, Record, Source
from headrace.learner.loop.scores import Scores
from headrace.learner.loop.scores import pack as pack_scores
from headrace.learner.loop.scores import unpack as unpack_scores
from headrace.serving.errors import ServingError
from headrace.serving.evaluation import feeder
from headrace.serving.evaluation.evaluator import EvaluationRules, Evaluator
from headrace.serving.evaluation.feeder import Feeder, FeedTopics
from headrace.serving.evaluation.messages import RowsBuilder, ServedPrediction, unpack
from headrace.serving.evaluation.window_pane import PaneSummary
from headrace.serving.evaluation.windows import total
from headrace.serving.observers.prediction_log import PredictionMessage
from tests.serving.evaluation.recount import recount
from tests.serving.evaluation.streams import BEGIN_MS, FIELDS, SOURCES, Batch, traffic

TOPICS = FeedTopics("examples", "scores", "predictions", "rows")
ROWS = Source("rows", 0)


def fields() -> FieldSet:
    """The fields of the synthetic traffic."""
    text = '[examples]\nslice_by = ["device"]\n[fields.device]\nnumber = 1\ntransform = "id"\n'
    where = SpecText("news.toml", text)
    return parse_fields(where.tables(), where)


class EvaluatedModel:
    """Topics as lists, and their feeders."""

    def __init__(self, seed: int = 4, minutes: int = 4) -> None:
        self.fields = fields()
        self.traffic = traffic(seed, minutes, fields=self.fields)
        records: dict[Source, list[Record]] = {self._source(name): [] for name in SOURCES}
        for name, batch in self.traffic.batches:
            held = records[self._source(name)]
            for value in self._values(batch):
                # offsets in steps of two: a transaction's marker is between any two records
                held.append(Record(self._source(name), 2 * len(held), 0, value))
        self.reader = ListReader(records, largest_poll=3)
        self.transactions = ListTransactions()
        self.now_ms = 1_800_000_000_000
        self.feeder = self.another()

    def another(self) -> Feeder:
        """Return a new feeder, as after a crash."""
        ports = memory_ports(self.reader, self.transactions, lambda: self.now_ms)
        return Feeder(ports, TOPICS, "news", self.fields, 1.0)

    def steps(self, count: int, step_ms: int = 100) -> None:
        """Run some steps."""
        for _ in range(count):
            self.feeder.step(0.0)
            self.now_ms += step_ms

    def folded(self) -> PaneSummary:
        """Return the totals of all written rows."""
        evaluation = Evaluator(EvaluationRules(fields=FIELDS, keep_ms=1 << 50), SOURCES)
        for offset, message in enumerate(self.transactions.written):
            assert message.target == ROWS
            evaluation.fold(offset, message.value)
        return total(evaluation)

    def expected(self) -> PaneSummary:
        """Return the expected totals."""
        made = self.traffic
        return recount(made.examples, made.scores, made.predictions)

    def _values(self, batch: Batch) -> list[bytes]:
        if isinstance(batch, Examples):
            return [pack_examples(batch)]
        if isinstance(batch, Scores):
            return [pack_scores(batch)]
        return [msgspec.json.encode(each) for each in batch]

    @staticmethod
    def _source(name: str) -> Source:
        topic, _, partition = name.partition("/")
        return Source(topic, int(partition))


def test_the_feeder_writes_every_batch_once_with_its_offsets() -> None:
    evaluated = EvaluatedModel()
    evaluated.steps(200)
    assert evaluated.folded() == evaluated.expected()
    for source, held in evaluated.reader.records.items():
        assert evaluated.transactions.offsets[source].offset == held[-1].offset + 1
    assert all(not at_end or time_ms for time_ms, at_end in standings(evaluated).values())
    assert all(at_end for _, at_end in standings(evaluated).values())


def test_the_empty_batch_with_which_a_partition_begins_moves_no_clock() -> None:
    evaluated = EvaluatedModel()
    source = Source("examples", 0)
    empty = pack_examples(Examples.empty(evaluated.fields))
    evaluated.reader.records[source][:] = [Record(source, 0, 0, empty)]
    evaluated.steps(200)
    assert standings(evaluated)["examples/0"] == (None, True)
    assert evaluated.transactions.offsets[source].offset == 1


def test_a_feeder_whose_offsets_kafka_forgot_goes_on_after_the_rows_it_wrote() -> None:
    evaluated = EvaluatedModel()
    evaluated.steps(20)
    written = len(evaluated.transactions.written)
    evaluated.transactions.offsets.clear()
    _restart(evaluated)
    evaluated.steps(200)
    assert 0 < written < len(evaluated.transactions.written)
    assert evaluated.folded() == evaluated.expected()
    for source, held in evaluated.reader.records.items():
        assert evaluated.transactions.offsets[source].offset == held[-1].offset + 1


def _restarted_with(evaluated: EvaluatedModel, position: Committed) -> list[tuple[str, int]]:
    """Restart the feeder with this position of `scores/0`; return the source's next positions."""
    source, written = Source("scores", 0), len(evaluated.transactions.written)
    evaluated.transactions.offsets[source] = position
    evaluated.reader.gain(source)
    evaluated.feeder = evaluated.another()
    evaluated.steps(200)
    rows = [unpack(each.value) for each in evaluated.transactions.written[written:]]
    return [(row.origins[n][0], at) for row in rows for n, at in row.positions.items()]


def test_a_log_that_lost_evaluated_records_is_named_and_read_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    evaluated, source = EvaluatedModel(), Source("scores", 0)
    evaluated.steps(200)
    end = evaluated.reader.bounds(source)[1]
    evaluated.reader.cut[source] = end - 3
    last = Committed(end, "id-of-scores", 5)
    assert _restarted_with(evaluated, last) == [("id-of-scores", end)]
    assert f"scores/0 lost records before offset {end}" in caplog.text
    assert evaluated.folded() == evaluated.expected()


def test_a_recreated_topic_is_named_and_evaluated_from_its_start(
    caplog: pytest.LogCaptureFixture,
) -> None:
    evaluated, source = EvaluatedModel(), Source("scores", 0)
    evaluated.steps(200)
    end = evaluated.reader.bounds(source)[1]
    again = sum(len(unpack_scores(each.value)) for each in evaluated.reader.records[source])
    assert _restarted_with(evaluated, Committed(7, "id-of-another"))[-1] == ("id-of-scores", end)
    assert evaluated.feeder.figures.scores == again
    assert "topic scores was created again" in caplog.text


def test_records_that_retention_removed_before_they_were_evaluated_are_counted_and_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    evaluated, source = EvaluatedModel(), Source("scores", 0)
    evaluated.steps(200)
    del evaluated.reader.records[source][:3]
    _restarted_with(evaluated, Committed(2, "id-of-scores"))
    assert evaluated.feeder.figures.lost == 4  # offsets are in steps of two
    assert (
        "scores/0: retention removed the records at offsets 2 to 5 before evaluation read them: "
        "reading from offset 6 on, without them"
    ) in caplog.text


def standings(evaluated: EvaluatedModel) -> dict[str, tuple[int | None, bool]]:
    """As last written."""
    return unpack(evaluated.transactions.written[-1].value).standings


def test_feeder_messages_stay_small_and_idle_feeders_send_heartbeats(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(feeder, "_MOST_ROWS", 100)
    evaluated = EvaluatedModel()
    evaluated.steps(200)
    sizes = [len(unpack(each.value).shown) // 25 for each in evaluated.transactions.written]
    assert max(sizes) < 200
    count = evaluated.transactions.count
    evaluated.steps(31)
    assert evaluated.transactions.count == count + 3
    last = unpack(evaluated.transactions.written[-1].value)
    assert last.now_ms == pytest.approx(evaluated.now_ms, abs=1_000)


def _abort(evaluated: EvaluatedModel) -> None:
    evaluated.transactions.failures = [TransactionAborted("aborted"), KafkaUnreachable("gone")]


def _move(evaluated: EvaluatedModel) -> None:
    """Revoke each partition, and assign it again."""
    for source in evaluated.reader.records:
        evaluated.reader.lose(source)
        evaluated.steps(2)
        evaluated.reader.gain(source)
        evaluated.steps(1)


def _restart(evaluated: EvaluatedModel) -> None:
    for source in evaluated.reader.records:
        evaluated.reader.gain(source)  # everything not committed is forgotten
    evaluated.feeder = evaluated.another()


@pytest.mark.parametrize("at", range(1, 20, 3))
@pytest.mark.parametrize("disturb", [_abort, _move, _restart])
def test_each_batch_is_written_once_across_aborts_rebalances_and_restarts(
    disturb: Callable[[EvaluatedModel], None], at: int
) -> None:
    evaluated = EvaluatedModel()
    evaluated.steps(at)
    disturb(evaluated)
    evaluated.steps(300)
    assert not evaluated.transactions.failures
    assert evaluated.feeder.figures.aborts == (2 if disturb is _abort else 0)
    assert evaluated.folded() == evaluated.expected()


def test_the_feeder_fails_after_a_long_time_without_a_write() -> None:
    evaluated = EvaluatedModel()
    evaluated.transactions.failures = [KafkaUnreachable("gone")] * 1_000
    with pytest.raises(KafkaUnreachable, match="gone"):
        evaluated.steps(100, step_ms=2_000)
    assert evaluated.transactions.count == 0


def test_invalid_messages_are_counted_and_those_of_other_models_ignored() -> None:
    evaluated = EvaluatedModel()
    evaluated.steps(200)
    before, source = evaluated.folded(), Source("predictions", 0)
    good = evaluated.traffic.predictions[0]
    for value in (
        b"{",
        msgspec.json.encode({"impression_id": "a"}),
        msgspec.json.encode(msgspec.structs.replace(good, impression_id="a", score=1.5)),
        msgspec.json.encode(msgspec.structs.replace(good, impression_id="a", model="other")),
    ):
        evaluated.reader.append(source, value)
    for topic in ("examples", "scores"):
        evaluated.reader.append(Source(topic, 0), b"no Arrow batch")
    evaluated.steps(20)
    assert evaluated.feeder.figures.unusable == 5
    assert evaluated.folded() == before
    assert evaluated.transactions.offsets[source].offset == evaluated.reader.bounds(source)[1]


def test_a_prediction_for_tomorrow_ends_no_minute_before_its_append() -> None:
    evaluated = EvaluatedModel()
    evaluated.steps(200)
    source, appended_ms = Source("predictions", 0), BEGIN_MS + 3_600_000
    ahead = msgspec.structs.replace(evaluated.traffic.predictions[0], time=appended_ms + 86_400_000)
    evaluated.reader.append(source, msgspec.json.encode(ahead), appended_ms)
    evaluated.steps(20)
    rows = unpack(evaluated.transactions.written[-1].value)
    found = [unpack(each.value).tables()[3] for each in evaluated.transactions.written]
    assert max(int(each["time_ms"].max()) for each in found if len(each)) == appended_ms
    assert rows.standings["predictions/0"][0] == appended_ms


def test_the_feeder_reads_the_messages_of_the_prediction_log() -> None:
    message = PredictionMessage(
        impression_id="i1",
        time=BEGIN_MS,
        request_id="r1",
        model="news",
        alias="champion",
        version=7,
        score=0.25,
        fields={"device": "phone", "tags": [1, "a"]},
    )
    read = msgspec.json.decode(msgspec.json.encode(message), type=ServedPrediction)
    assert read == ServedPrediction("i1", "news", "champion", 0.25, BEGIN_MS, "r1")


def test_predictions_by_model_name_and_by_an_alias_named_learned_stay_apart_from_the_learner() -> (
    None
):
    gathering = RowsBuilder(FIELDS, 1.0)
    for alias in ("", "learned", "champion"):
        gathering.prediction(ServedPrediction("i", "news", alias, 0.5, BEGIN_MS))
    assert gathering.take(0, {}).series == ["by-name", "champion", "learned-alias"]


def test_examples_of_other_fields_stop_the_feeder_with_their_position() -> None:
    evaluated = EvaluatedModel()
    where = SpecText("other.toml", '[fields.other]\nnumber = 1\ntransform = "id"\n')
    other = Examples.empty(parse_fields(where.tables(), where))
    record = evaluated.reader.append(Source("examples", 1), pack_examples(other))
    with pytest.raises(ServingError, match=rf"examples/1@{record.offset}: .*fingerprint"):
        evaluated.steps(200)


def test_examples_that_kafka_did_not_deliver_are_counted_and_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    evaluated, source = EvaluatedModel(), Source("examples", 0)
    for before in (0, 3, 3):
        empty = replace(Examples.empty(evaluated.fields), before=before)
        evaluated.reader.append(source, pack_examples(empty))
    evaluated.steps(200)
    assert evaluated.feeder.figures.lost == 3
    assert "3 examples before it are missing" in caplog.text
