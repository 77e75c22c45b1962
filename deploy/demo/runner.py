"""Runs the demo: a stream through a whole pipeline, and a live model beside a frozen copy.

The stream is synthetic and in real time (`synthetic.py`). After a third of
the time, a minute at most, the rows are copied, and the copy never learns again. From then on two
models score the same impressions, and their difference is the value of freshness. All figures come
from sources that a user can read too: topics, the server and the rows.
"""

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace

import orjson
from rich.console import Console
from rich.live import Live

from headrace.deploy.demo.live_stream import LiveStream, Throttle
from headrace.deploy.demo.synthetic import (
    CLICKS_SHARE,
    Event,
    SyntheticEvents,
    SyntheticSite,
    SyntheticStream,
)
from headrace.deploy.demo.view import (
    DemoMetrics,
    DemoSummary,
    DemoView,
    EventCounts,
    announcement,
    line,
    summary,
    table,
)
from headrace.deploy.local.drain import Backlog
from headrace.deploy.local.pipeline import LocalPipeline, PipelineSettings
from headrace.deploy.local.services.progress import SetupProgress
from headrace.deploy.reports.event_log import curl_of
from headrace.deploy.reports.model_comparison import ComparisonSnapshot, observed_drift
from headrace.deploy.reports.observer import (
    Observer,
    Rate,
    ServerStatus,
    ask_caught_up,
    ask_server,
    copied,
    copy_rows,
)
from headrace.deploy.reports.report import count_rows
from headrace.deploy.reports.tracking.run_recorder import RunRecorder
from headrace.deploy.reports.tracking.tracked_run import RunState
from headrace.ingest.joiner.committed_state import read_state
from headrace.ingest.kafka.producer import BY_KEY, KafkaWriter
from headrace.ingest.kafka.protocols import Source
from headrace.ingest.kafka.topics import EventTopics
from headrace.ingest.status import publish_status
from headrace.pserver.rows.table import RowTable
from headrace.runtime.clock import wall_ms

SHOW_EVERY_S = 0.5
LINE_EVERY_S = 10.0
ASK_EVERY_S = 1.0
RECENT_S = 10.0
"""Window of the recent figures: changes show within seconds, and an AUC is exact to 0.01."""


_LONGEST_PART_S = 60.0
"""The model is frozen after the first part; the last part is compared at the end."""


@dataclass(frozen=True, slots=True)
class DemoSettings:
    """Settings of a demo."""

    pipeline: PipelineSettings
    seconds: float
    events_s: int
    """Synthetic impressions and clicks per second."""
    seed: int

    @property
    def part_s(self) -> float:
        """Length of the first part and of the last part, in seconds."""
        return min(_LONGEST_PART_S, self.seconds / 3)

    @property
    def upheaval_s(self) -> float:
        """The moment at which all items of the synthetic site change their appeal."""
        return self.seconds / 2


def run_demo(settings: DemoSettings, stop: threading.Event, recorder: RunRecorder) -> None:
    """Show the demo on the terminal, or as plain lines without one. Raises DeployError."""
    console = Console()
    with SetupProgress(console) as steps, LocalPipeline(settings.pipeline, steps) as pipeline:
        console.print(
            f"the page: {pipeline.address}/ (available in about ten seconds; the first start takes "
            "a minute longer, because it compiles kernels)",
            soft_wrap=True,
        )
        if not pipeline.start(stop):
            return
        observer = Observer(pipeline.kafka, pipeline.spec)
        figures = DemoMetrics(pipeline.spec.name)
        try:
            with (
                publish_status(pipeline.kafka, "demo", figures.registry),
                _playing(settings, pipeline, observer) as player,
            ):
                _Demo(settings, pipeline, observer, player, console, stop, figures, recorder).run()
        finally:
            observer.close()


@contextmanager
def _playing(
    settings: DemoSettings, pipeline: LocalPipeline, observer: Observer
) -> Iterator[LiveStream]:
    """Create the stream, not started yet, and stop it on exit."""
    with closing(KafkaWriter(pipeline.kafka)) as writer:
        stream = _synthetic(settings, writer, observer)
        try:
            yield stream
        finally:
            stream.abandon()
            if stream.is_alive():
                stream.join()


def _synthetic(settings: DemoSettings, writer: KafkaWriter, observer: Observer) -> LiveStream:
    site = SyntheticSite.lasting(settings.seconds)
    world = replace(site, overturned_after_s=settings.upheaval_s)
    stream, topics = SyntheticStream(world, settings.seed, wall_ms()), EventTopics()

    def send(happened: SyntheticEvents) -> None:
        # before the send, so that the truth is known before a score arrives
        observer.expect([e["impression_id"] for e in happened.impressions], happened.truth)
        for topic, events in (
            (topics.impressions, happened.impressions),
            (topics.clicks, happened.clicks),
        ):
            for event in events:
                key = event["request_id"].encode()
                writer.send(Source(topic, BY_KEY), orjson.dumps(event), key)

    throttle = Throttle(settings.events_s / (1 + CLICKS_SHARE))
    return LiveStream(
        stream, throttle, send, lambda: observer.expected - observer.comparison.scored
    )


class _Demo:
    """A running demo, in the main thread."""

    def __init__(
        self,
        settings: DemoSettings,
        pipeline: LocalPipeline,
        observer: Observer,
        player: LiveStream,
        console: Console,
        stop: threading.Event,
        figures: DemoMetrics,
        recorder: RunRecorder,
    ) -> None:
        self._figures, self._recorder = figures, recorder
        self._settings, self._pipeline, self._observer = settings, pipeline, observer
        self._player = player
        self._console, self._stop = console, stop
        self._frozen_at_s: float | None = None
        self._copying: Future[RowTable] | None = None
        self._server: ServerStatus | None = None
        self._asked_s = self._shown_s = float("-inf")
        self._printed_s = 0.0
        self._events, self._examples = Rate(), Rate()
        self._live: Live | None = None

    def run(self) -> None:
        """Play, freeze the copy, wait until every event is learned, and print the summary."""
        settings, observer = self._settings, self._observer
        observer.poll(0.0)  # move to the end of the topics before the first event is sent
        command = curl_of(self._pipeline.address, self._pipeline.spec, _sample(settings))
        # not in the table, whose line breaks would make it impossible to paste
        self._console.print(f"\nwatch it learn: {self._pipeline.address}/", soft_wrap=True)
        moments = announcement(settings.seconds, settings.part_s, settings.upheaval_s)
        self._console.print(moments, soft_wrap=True, highlight=False)
        self._console.print(
            f"request predictions while the demo runs:\n{command}\n", soft_wrap=True
        )
        with (
            ThreadPoolExecutor(1, thread_name_prefix="copy") as self._aside,
            Live(console=self._console, auto_refresh=False, transient=True) as live,
        ):
            self._live = live if self._console.is_terminal else None
            observer.begin()
            self._player.start()
            drain_s = SyntheticSite.lasting(settings.seconds).longest_delay_s
            self._play_until(settings.seconds - drain_s)
            shown_s = observer.at_s
            self._player.stop_showing()
            self._finish()
            self._live = None
        if self._stop.is_set():
            self._recorder.change(state=RunState.STOPPED)
        else:
            self._summarize(shown_s)

    def _play_until(self, end_s: float) -> None:
        while self._observer.at_s < end_s and self._player.is_alive() and not self._stop.is_set():
            self._look("learning")
            if self._observer.at_s >= self._settings.part_s:
                self._freeze()

    def _freeze(self) -> None:
        """Start to copy the rows. The finished copy is the frozen model."""
        if self._copying is None:
            # in a thread: it takes a second or two, and the stream goes on
            self._copying = self._aside.submit(copy_rows, self._pipeline.store)
        elif self._frozen_at_s is None and self._copying.done():
            buckets = self._pipeline.store.shape().buckets
            self._observer.freeze(self._copying.result(), buckets)
            self._frozen_at_s = self._observer.at_s

    def _finish(self) -> None:
        while self._player.is_alive() and not self._stop.is_set():
            self._look("the last clicks")
        self._look("waiting until every event is learned")
        if self._stop.is_set():
            return

        def tell(_behind: Backlog) -> None:
            self._look("waiting until every event is learned")

        self._pipeline.arrival.wait(self._stop, tell)
        self._observer.poll(0.2)

    def _look(self, phase: str) -> None:
        """Read new messages, and show the figures when they are due."""
        self._observer.poll(0.05)
        self._pipeline.check()
        if self._player.failure is not None:
            raise self._player.failure
        now_s = self._observer.at_s
        if now_s - self._asked_s >= ASK_EVERY_S:
            self._asked_s = now_s
            self._server = (
                ask_server(self._pipeline.address, self._pipeline.spec.name) or self._server
            )
        if now_s - self._shown_s >= SHOW_EVERY_S:
            self._shown_s = now_s
            view = self._view(phase, now_s)
            self._figures.note(view.recent)
            self._recorder.point(wall_ms(), demo_figures(view.recent))
            self._show(view)

    def _show(self, view: DemoView) -> None:
        if self._live is not None:
            self._live.update(table(view), refresh=True)
        elif not self._console.is_terminal and view.at_s - self._printed_s >= LINE_EVERY_S:
            self._printed_s = view.at_s
            self._console.print(line(view), soft_wrap=True, highlight=False)

    def _view(self, phase: str, now_s: float) -> DemoView:
        settings, server = self._settings, self._server
        recent_s = min(RECENT_S, settings.part_s)
        # clicks of the last seconds are still missing: compare a little earlier
        to_s = now_s - (SyntheticSite.lasting(settings.seconds).click_delay_s * 2)
        return DemoView(
            phase=phase,
            at_s=now_s,
            of_s=settings.seconds,
            events_s=self._events.note(now_s, self._player.sent),
            examples_s=self._examples.note(now_s, self._observer.comparison.examples),
            recent=self._observer.comparison.snapshot(to_s - recent_s, to_s),
            recent_s=recent_s,
            frozen_at_s=self._frozen_at_s,
            freeze_due_s=settings.part_s,
            p50_ms=server.p50_ms if server else None,
            p99_ms=server.p99_ms if server else None,
            rows=server.rows if server else None,
            address=self._pipeline.address,
        )

    def _summarize(self, shown_s: float) -> None:
        pipeline, part_s = self._pipeline, self._settings.part_s
        state = read_state(pipeline.kafka, pipeline.spec)
        followed = copied(pipeline.store)
        rows = count_rows(followed.table, pipeline.spec.fields)
        server = ask_caught_up(pipeline.address, pipeline.spec.name, followed, self._stop)
        server = server or self._server
        impressions, clicks = self._player.impressions, self._player.clicks
        comparison, upheaval_s = self._observer.comparison, self._settings.upheaval_s
        result = DemoSummary(
            seconds=self._observer.at_s,
            impressions=impressions,
            clicks=clicks,
            frozen_at_s=self._frozen_at_s,
            last=self._observer.comparison.snapshot(shown_s - part_s, shown_s + 1.0),
            last_s=part_s,
            p50_ms=server.p50_ms if server else None,
            p99_ms=server.p99_ms if server else None,
            rows=rows.rows,
            upheaval=observed_drift(comparison, upheaval_s),
            counted=EventCounts(
                *(impressions, clicks, state.late_clicks + state.unmatched_clicks),
                *(rows.shows_by_field, rows.clicks_by_field),
            ),
        )
        figures = demo_figures(result.last) | {"rows": rows.rows, "freshness_p99_ms": result.p99_ms}
        self._recorder.figures(figures)
        self._console.print(f"\n{summary(result)}", soft_wrap=True, highlight=False)


def demo_figures(found: ComparisonSnapshot) -> dict[str, float | None]:
    """Return the figures of a comparison under the names that records of runs have."""
    return {
        "auc": found.live,
        "log_loss": found.live_loss,
        "impressions": found.impressions,
        "frozen_auc": found.frozen,
        "frozen_log_loss": found.frozen_loss,
    }


def _sample(settings: DemoSettings) -> list[Event]:
    """Return impressions for the example request."""
    now_ms = wall_ms()
    stream = SyntheticStream(SyntheticSite.lasting(settings.seconds), settings.seed, now_ms)
    return stream.step(now_ms, 1).impressions[:2]
