"""Accuracy by the number of partitions and of learners, with the product's own joiner and learner.

    python -m tests.bench.partitions [--quick] [--json] [--data DIR] [--model FILE ...]
                                     [--key request|impression] [--live SPEED]
                                     [--learners N ...] [--push-every SETTING ...]
    python -m tests.bench.partitions --processes [--quick] [--json] [--data DIR] [--model FILE ...]
                                     [--partitions N ...]

A log goes through `Joiner` and `Learner` over Kafka and a parameter server in memory, with 1, 2, 8
and 32 partitions, and with one learner and two. For each: AUC, AUC within a request and log loss of
the scores made before learning.

Events are keyed by their request, as a replay does it; `--key impression` keys them by impression.
The log is a backlog: everything is in Kafka before the joiner starts, and joined before learners
start, which is when partitions are farthest apart. With `--live SPEED`, each event arrives at its
time instead, SPEED times as fast as in the log. Time is simulated. A learner's clock advances by
the examples that it learned, at 100,000 a second, so it pushes and folds as often as at full speed,
and a figure is the same on every machine. Learners take turns: the one whose clock is behind.

`spread` is the largest difference between all runs, `spread_by_learners` between the runs of the
same number of learners. A learner does not see what another has learned since its last push, so at
full speed two learners are less accurate than one, whatever the partitions.

With `--processes`, each run is `headrace run --speed max` with one learner: real processes, Kafka
and Valkey. `--quick` then measures 1 and 8 partitions.

`--quick` takes a generated log; with `--live`, it takes some minutes nevertheless. Without it, the
sample week (HEADRACE_WEEK or --data) is measured.
"""

import argparse
import json
import tempfile
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from headrace.deploy.demo.synthetic import SyntheticSite, SyntheticStream
from headrace.ingest.examples.batch import unpack
from headrace.ingest.joiner.loop import Joiner, JoinerPacing
from headrace.ingest.kafka.fakes import ListReader, ListTransactions, memory_ports
from headrace.ingest.kafka.protocols import ReaderEvent, Record, Source
from headrace.ingest.kafka.topics import EventTopics, examples_topic
from headrace.ingest.logs.ndjson import DirectoryLog
from headrace.learner.loop.learner import Learner
from headrace.learner.loop.pacing import LearnerPacing, parse_push_interval
from headrace.learner.loop.ports import LearnerClocks
from headrace.learner.loop.scores import unpack as unpack_scores
from headrace.learner.models.factory import open_model
from headrace.learner.spec.model_spec import ModelSpec, load_spec
from headrace.learner.validation.outcomes import join_outcomes
from tests.bench.bench_options import bench_parser, print_figures
from tests.bench.ebnerd.week import WEEK, leave_without
from tests.deploy.command import headrace
from tests.deploy.demo.written_log import write_log
from tests.learner.in_memory import InMemoryModel

_MODELS = Path(__file__).parents[3] / "deploy" / "models"
PARTITIONS, LEARNERS = (1, 2, 8, 32), (1, 2)
_QUICK_PARTITIONS = (1, 8)
"""With real processes, which take some seconds to start."""
FIGURES = ("auc", "request_auc", "log_loss")
_TICK_EVERY = 2_000
"""Lines between two ticks, as in a replay at full speed."""
_EXAMPLES_A_MS = 100
_LIVE_STEP_MS = 5
_QUICK_SECONDS, _QUICK_REQUESTS_S = 600, 10
_RUN_S = 900.0


class LiveReader(ListReader):
    """A reader of lists whose records arrive at their times."""

    def __init__(
        self, arriving: Mapping[Source, Sequence[tuple[float, Record]]], now_ms: Callable[[], float]
    ) -> None:
        """arriving: records with the time of each on this clock, in ascending order."""
        super().__init__({source: [] for source in arriving}, largest_poll=1 << 20)
        self._arriving = {source: deque(held) for source, held in arriving.items()}
        self._now_ms = now_ms

    @property
    def waiting(self) -> int:
        """Records still to arrive."""
        return sum(map(len, self._arriving.values()))

    def poll(self, timeout_s: float) -> list[ReaderEvent]:
        """Return what has arrived."""
        now_ms = self._now_ms()
        for source, held in self._arriving.items():
            while held and held[0][0] <= now_ms:
                self.records[source].append(held.popleft()[1])
        return super().poll(timeout_s)


class KeyedEvent:
    """One line of a log, with its partition key."""

    __slots__ = ("is_click", "key", "time_ms", "value")

    def __init__(self, time_ms: int, is_click: bool, key: bytes, value: bytes) -> None:
        self.time_ms, self.is_click, self.key, self.value = time_ms, is_click, key, value


def read_log(directory: Path, key: str) -> list[KeyedEvent]:
    """Return the events of a log, keyed by `impression` or by `request`."""
    events, requests = [], {}
    for line in DirectoryLog(directory).lines():
        identity = line.key or b""
        if key == "request":
            if not line.is_click:
                request = json.loads(line.value).get("request_id")
                requests[identity] = request.encode() if request else identity
            identity = requests.get(identity, identity)
        events.append(KeyedEvent(line.time_ms, line.is_click, identity, line.value))
    return events


def dealt(
    events: Sequence[KeyedEvent], partitions: int, window_ms: int
) -> dict[Source, list[Record]]:
    """Return the records of both topics by partition, with ticks in all of them."""
    topics = EventTopics()
    sources = {
        (topic, number): Source(topic, number)
        for topic in (topics.impressions, topics.clicks)
        for number in range(partitions)
    }
    records: dict[Source, list[Record]] = {source: [] for source in sources.values()}

    def append(source: Source, time_ms: int, value: bytes) -> None:
        held = records[source]
        held.append(Record(source, len(held), time_ms, value))

    def tick(time_ms: int) -> None:
        for source in sources.values():
            append(source, time_ms, json.dumps({"timestamp_ms": time_ms}).encode())

    for place, event in enumerate(events):
        topic = topics.clicks if event.is_click else topics.impressions
        append(sources[topic, zlib.crc32(event.key) % partitions], event.time_ms, event.value)
        if place % _TICK_EVERY == _TICK_EVERY - 1:
            tick(event.time_ms)
    tick(events[-1].time_ms + window_ms + 1)
    return records


def join_log(
    spec: ModelSpec, records: dict[Source, list[Record]], events: int, live: float = 0.0
) -> dict[Source, list[Record]]:
    """Return the messages of examples that one joiner writes, by partition.

    live: how many times as fast as in the log events arrive. A message has the time in milliseconds
    at which it was written as its append time then.
    """
    transactions, now = ListTransactions(), [0]
    reader = ListReader(records, largest_poll=1 << 30)
    if live:
        first_ms = min(held[0].append_ms for held in records.values())
        reader = LiveReader(
            {
                s: [((r.append_ms - first_ms) / live, r) for r in held]
                for s, held in records.items()
            },
            lambda: now[0],
        )
    ports = memory_ports(reader, transactions, lambda: now[0])
    joiner = Joiner(ports, spec.name, spec.fields, EventTopics(), JoinerPacing())
    idle, noted, made = 0, 0, dict[Source, list[Record]]()
    while idle < 10:
        now[0] += _LIVE_STEP_MS if live else 50
        waits = isinstance(reader, LiveReader) and reader.waiting
        idle = 0 if joiner.step(0.0) or waits else idle + 1
        noted = _note(transactions, noted, spec, now[0] if live else 1, made)
    joiner.finish()
    _note(transactions, noted, spec, now[0] if live else 1, made)
    assert joiner.figures.counted.impressions + joiner.figures.counted.clicks == events
    assert not joiner.figures.counted.late_clicks, joiner.figures.counted
    return made


def _note(
    transactions: ListTransactions,
    noted: int,
    spec: ModelSpec,
    now_ms: int,
    made: dict[Source, list[Record]],
) -> int:
    """Add the messages of examples beyond the first `noted`; return how many there are now."""
    for message in transactions.written[noted:]:
        if message.target.topic == examples_topic(spec.name):
            held = made.setdefault(message.target, [])
            held.append(Record(message.target, len(held), now_ms, message.value))
    return len(transactions.written)


class _WorkingModel:
    """A model whose work advances its learner's clock."""

    def __init__(self, model: Any, clock: list[float]) -> None:
        self._model, self._clock = model, clock

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def learn(self, view: Any, gaining: Any, active: Any, examples: Any) -> Any:
        self._clock[0] += len(examples) / _EXAMPLES_A_MS
        return self._model.learn(view, gaining, active, examples)


class Learners(InMemoryModel):
    """Several learners of one topic, in simulated time."""

    def __init__(
        self,
        spec: ModelSpec,
        made: dict[Source, list[Record]],
        learners: int,
        *,
        live: bool = False,
        push_every: str = "",
    ) -> None:
        """live: messages arrive at their append times. push_every: as the flag of a learner."""
        super().__init__(spec, 16)
        self._live, self._staleness = live, parse_push_interval(push_every)
        self._ends = {source.partition: len(held) for source, held in made.items()}
        self._clocks = [[0.0] for _ in range(learners)]
        self._learners = [
            self._one(number, [made[source] for source in sorted(made)][number::learners])
            for number in range(min(learners, len(made)))
        ]

    def _one(self, number: int, parts: Sequence[list[Record]]) -> Learner:
        clock = self._clocks[number]
        records, reader = [record for records in parts for record in records], None
        if self._live:
            arriving = {held[0].source: [(r.append_ms, r) for r in held] for held in parts}
            reader = LiveReader(arriving, lambda: clock[0])
        return self.learner(
            records,
            LearnerPacing(log_bytes_limit=1 << 50, staleness=self._staleness),
            model=_WorkingModel(open_model(self.spec, self.shape.buckets), clock),
            clocks=LearnerClocks(lambda: int(clock[0]), lambda _: None, self.nonce),
            largest_poll=1 << 20,
            reader=reader,
        )

    def run(self) -> None:
        """Step until every bucket has learned every message."""
        turn = 0
        while turn % 100 or not self.learned(self._ends):
            turn += 1
            number = min(range(len(self._learners)), key=lambda n: self._clocks[n][0])
            self._learners[number].step(0.0)
            self._clocks[number][0] += _LIVE_STEP_MS if self._live else 1.0

    def figures(self, made: Iterable[list[Record]]) -> dict[str, float]:
        """Return the accuracy of the scores."""
        examples = [unpack(r.value, self.spec.fields) for records in made for r in records]
        scores = [unpack_scores(sent.value) for sent in self.written.sent]
        found = asdict(join_outcomes(examples, scores).figures())
        return {name: round(found[name], 5) for name in FIGURES}


def measure(
    spec: ModelSpec,
    events: Sequence[KeyedEvent],
    partitions: Sequence[int],
    tell: Console,
    live: float = 0.0,
    push_every: Sequence[str] = ("",),
    learners: Sequence[int] = LEARNERS,
) -> list[dict[str, Any]]:
    """Return the figures by number of partitions and learners, and by interval of pushes."""
    found = []
    for count in partitions:
        records = dealt(events, count, spec.fields.label.window_ms)
        made = join_log(spec, records, len(events), live)
        for number in learners:
            if number > count:
                continue
            for setting in push_every:
                world = Learners(spec, made, number, live=live > 0.0, push_every=setting)
                world.run()
                run = {"partitions": count, "learners": number, "push_every": setting}
                found.append(run | world.figures(made.values()))
                tell.print(f"{spec.name}: {found[-1]}")
    return found


def measure_processes(
    model: Path, data: Path, partitions: Sequence[int], tell: Console
) -> list[dict[str, Any]]:
    """Return the accuracy, and the events learned in a second, of real processes.

    Replay, joiner and learner of a run work at once, with a Kafka and a Valkey of its own.
    """
    found = []
    for count in partitions:
        with tempfile.TemporaryDirectory(prefix="headrace-partitions-") as directory:
            report = Path(directory) / "report.json"
            ended = headrace(
                *("run", "--model", str(model), "--data", str(data), "--speed", "max"),
                *("--partitions", str(count), "--report", str(report)),
                *("--runs", "off", "--no-check", "--no-evaluate"),
                timeout_s=_RUN_S,
            )
            if ended.returncode:
                raise RuntimeError(f"{count} partitions: expected a report, got {ended.stderr}")
            made = json.loads(report.read_bytes())
        accuracy = made["progressive"]
        figures = {name: round(accuracy[name], 5) for name in ("auc", "request_auc", "log_loss")}
        events_s = round((made["impressions"] + made["clicks"]) / made["seconds"])
        run = {"partitions": count, "learners": 1, "push_every": "", "events_s": events_s}
        found.append(run | figures)
        tell.print(f"{model.stem}: {found[-1]}")
    return found


def spread(found: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Return the largest difference of each figure."""
    return {name: round(float(np.ptp([each[name] for each in found])), 5) for name in FIGURES}


def _of_model(path: Path, data: Path, chosen: argparse.Namespace, tell: Console) -> dict[str, Any]:
    """Return the runs of a model, and the largest differences."""
    counts, learners = chosen.partitions or PARTITIONS, chosen.learners or LEARNERS
    if chosen.processes:
        default, learners = _QUICK_PARTITIONS if chosen.quick else PARTITIONS, (1,)
        found = measure_processes(path, data, chosen.partitions or default, tell)
    else:
        events, settings = read_log(data, chosen.key), chosen.push_every or [""]
        found = measure(load_spec(path), events, counts, tell, chosen.live, settings, learners)
    by_learners = {
        str(number): spread([each for each in found if each["learners"] == number])
        for number in learners
        if any(each["learners"] == number for each in found)
    }
    return {"runs": found, "spread": spread(found), "spread_by_learners": by_learners}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = bench_parser("partitions", __doc__, quick="a generated log, within a minute")
    parser.add_argument("--data", type=Path, default=WEEK, help="directory of the log")
    parser.add_argument("--model", type=Path, action="append", help="spec; may be repeated")
    parser.add_argument("--key", choices=("request", "impression"), default="request")
    parser.add_argument(
        "--live", type=float, default=0.0, metavar="SPEED", help="events arrive at their times"
    )
    parser.add_argument("--partitions", type=int, action="append", help="may be repeated")
    parser.add_argument("--learners", type=int, action="append", help="may be repeated")
    parser.add_argument(
        "--push-every", action="append", metavar="SETTING", help="of learners; may be repeated"
    )
    parser.add_argument("--processes", action="store_true", help="real processes and servers")
    chosen = parser.parse_args(arguments)
    tell = Console(stderr=True, width=140)
    with tempfile.TemporaryDirectory(prefix="headrace-partitions-") as directory:
        data, models = chosen.data, chosen.model or [_MODELS / "news.toml"]
        if chosen.quick:
            data, models = Path(directory), chosen.model or [_MODELS / "demo.toml"]
            stream = SyntheticStream(SyntheticSite(), 7, 1_700_000_000_000)
            write_log(data, stream, _QUICK_SECONDS, _QUICK_REQUESTS_S)
        else:
            leave_without(data)
        result = {path.stem: _of_model(path, data, chosen, tell) for path in models}
    print_figures(result, as_json=chosen.json)


if __name__ == "__main__":
    main()
