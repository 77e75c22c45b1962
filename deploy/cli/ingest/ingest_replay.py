"""`headrace ingest replay`: a log becomes events in Kafka, or live traffic with requests."""

from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from headrace.deploy.cli.run import speed_of
from headrace.deploy.errors import BadOption
from headrace.deploy.options import (
    DATA,
    LAYOUT_NAME,
    MODEL,
    SORT,
    SPEED,
    KafkaOptions,
    SpecFile,
    layout_of,
    token_in,
)
from headrace.deploy.process_logs import show_warnings_only
from headrace.runtime.counted_nouns import counted
from headrace.runtime.settings import setting
from headrace.runtime.termination import stopped_by_signals

if TYPE_CHECKING:
    from headrace.deploy.reports.ranking_client import RankingClient
    from headrace.ingest.logs.ndjson import Line
    from headrace.ingest.replay.live_log import LivePace
    from headrace.learner.spec.model_spec import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestReplayOptions:
    """Options of `headrace ingest replay`."""

    resume_as: str = setting("", metavar="NAME")
    """Name of this replay. A killed replay of the same name resumes without duplicates."""
    onto_newer: bool = setting(False)
    """Send a log even if it is older than the events in its topics. Joiners turn such events into
    dead letters."""
    now: bool = setting(False)
    """Live traffic: give each event the time at which it is sent, and ids of its own. Needs --speed
    with a number."""
    repeat: bool = setting(False)
    """With --now: send the log again and again, until stopped."""
    ask: str = setting("", metavar="URL")
    """Server, such as http://localhost:8000. It ranks each request of the log before the events of
    the request are sent."""
    alias: str = setting("production", metavar="NAME")
    """With --ask: alias or model that ranks."""
    token_file: Path | None = setting(None, env="HEADRACE_SERVING_TOKEN_FILE", metavar="FILE")
    """With --ask: file with a token that the server accepts."""


def replay(
    options: IngestReplayOptions,
    kafka: KafkaOptions,
    model: SpecFile = MODEL,
    data: list[Path] = DATA,
    speed: str = SPEED,
    layout: str = LAYOUT_NAME,
    sort: bool = SORT,
) -> None:
    """Send a log of events to Kafka in the order of their timestamps.

    With --now and --ask, the log is the traffic of a site: requests, impressions and clicks.
    """
    from rich.console import Console

    from headrace.deploy.local.background_replay import BackgroundReplay, watch_replay
    from headrace.ingest.logs.opening import open_log
    from headrace.ingest.replay.backfill import check_backfill

    show_warnings_only()
    pace = _pace(
        speed_of(speed), now=options.now, repeat=options.repeat, resume_as=options.resume_as
    )
    spec, settings = model.spec, kafka.settings()
    mapped = layout_of(layout, data)
    if not (
        options.onto_newer or options.resume_as or options.now
    ):  # a replay that resumes comes after its own events
        logs = (open_log(path, mapped, sort=sort) for path in data)
        check_backfill(settings, logs, spec.fields.label.window_ms)
    with ExitStack() as stack:
        client = (
            stack.enter_context(_client(options.ask, options.alias, options.token_file, spec))
            if options.ask
            else None
        )
        replaying = BackgroundReplay(
            *(settings, spec, data, pace),
            layout=mapped,
            resume_as=options.resume_as or None,
            before=None if client is None else _Asking(client, options.ask),
            sort=sort,
        )
        stop = stack.enter_context(stopped_by_signals())
        watch_replay(replaying, Console(stderr=True), stop)
    replayed = replaying.replayed
    impressions = sum(each.impressions for each in replayed.logs)
    clicks = sum(each.clicks for each in replayed.logs)
    before = f", {replayed.resumed:,} of them before the restart" if replayed.resumed else ""
    click.echo(f"sent {counted(impressions, 'impression')} and {counted(clicks, 'click')}{before}")
    if client is not None:
        click.echo(_answers(client))


def _pace(
    speed: float | None, *, now: bool, repeat: bool, resume_as: str
) -> "float | LivePace | None":
    """Return the speed of a replay. Raises BadOption for options that contradict --now."""
    from headrace.ingest.replay.live_log import LivePace

    if repeat and not now:
        raise BadOption("--repeat: expected --now beside it, because each pass needs new times")
    if not now:
        return speed
    if speed is None:
        raise BadOption("--now: expected --speed with a number, such as --speed 60, got max")
    if resume_as:
        raise BadOption("--now: expected no --resume-as, because times differ after a restart")
    return LivePace(speed, repeat)


def _client(url: str, alias: str, token_file: Path | None, spec: "ModelSpec") -> "RankingClient":
    from headrace.deploy.reports.ranking_client import RankingClient

    ranks = f"{url.rstrip('/')}/v1/models/{alias}:rank"
    return RankingClient(ranks, spec.fields, token=token_in(token_file))


class _Asking:
    """Has requests ranked before their events are sent, and warns once if no answer comes."""

    def __init__(self, client: "RankingClient", url: str) -> None:
        self._client, self._url, self._warned = client, url, False

    def __call__(self, lines: "Sequence[Line]", late_s: float) -> None:
        with suppress(TimeoutError):  # the site goes on without the answers
            self._client.ask(lines, late_s)
        stats = self._client.stats
        if not (stats.answered or self._warned) and stats.unanswered + stats.refused:
            self._warned = True
            click.echo(
                f"expected answers from {self._url} (--ask), got none yet: is the server running, "
                "does it have the alias (--alias), and does it accept the token (--token-file)? "
                "Events are sent meanwhile",
                err=True,
            )


def _answers(client: "RankingClient") -> str:
    stats = client.stats
    models = ", ".join(f"{name} {count:,}" for name, count in sorted(stats.by_model.items()))
    rest = {
        "skipped, because the replay was late": stats.late,
        "without an answer in time": stats.unanswered,
        "refused": stats.refused,
    }
    others = "".join(f"; {count:,} {what}" for what, count in rest.items() if count)
    return f"answers to {counted(stats.requests, 'request')}: {models or 'none'}{others}"
