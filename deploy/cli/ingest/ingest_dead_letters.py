"""`headrace ingest dead-letters`: shows invalid events and sends repaired ones back."""

import sys
from collections import Counter
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.counted_nouns import counted
from headrace.deploy.cli.options import KAFKA, KafkaAddress, KafkaClient
from headrace.printable_text import printable

if TYPE_CHECKING:
    from headrace.ingest.dead_letters import Choice, Letter

app = typer.Typer(help="Show invalid events and send repaired ones back.", no_args_is_help=True)

_SHOWN_CHARACTERS = 100

Reason = Annotated[
    str,
    typer.Option(
        "--reason", help="Only letters with this reason, such as bad_time, or a part of one."
    ),
]
Topic = Annotated[str, typer.Option("--topic", help="Only events of this topic.")]
Since = Annotated[
    datetime | None,
    typer.Option("--since", help="Only events received at this time or later (UTC)."),
]
Until = Annotated[
    datetime | None, typer.Option("--until", help="Only events received before this time (UTC).")
]


@app.command()
def show(
    reason: Reason = "",
    topic: Topic = "",
    since: Since = None,
    until: Until = None,
    limit: Annotated[
        int, typer.Option("--limit", min=0, help="Letters to show. All are counted.")
    ] = 20,
    json: Annotated[
        bool,
        typer.Option("--json", help="Print every letter as a line of JSON, the input of `retry`."),
    ] = False,
    kafka: KafkaAddress = KAFKA,
    kafka_client: KafkaClient = None,
) -> None:
    """Show the open dead letters: the count of each reason, and the events."""
    from headrace.deploy.connections import kafka_settings
    from headrace.deploy.process_logs import show_warnings_only
    from headrace.ingest.dead_letters import DeadLetters, as_line
    from headrace.ingest.kafka import EventTopics

    show_warnings_only()
    there = DeadLetters(kafka_settings(kafka, kafka_client), EventTopics().dead_letters)
    letters = there.letters(_choice(reason, topic, since, until))
    if json:
        for letter in letters:
            sys.stdout.buffer.write(as_line(letter) + b"\n")
        sys.stdout.buffer.flush()
        return
    counts: Counter[tuple[str, str, str]] = Counter()
    shown: list[str] = []
    for letter in letters:
        counts[letter.topic, letter.reason_name, letter.reason] += 1
        if len(shown) < limit:
            shown.append(_described(letter))
    for (name, word, sentence), count in counts.most_common():
        typer.echo(f"{count:>8,}  {name}  {word}: {sentence}")
    for text in shown:
        typer.echo(f"\n{text}")
    if counts.total() > len(shown):
        typer.echo(f"\n... and {counts.total() - len(shown):,} more (--limit, --json)")
    typer.echo(
        f"\n{counted(counts.total(), 'open letter')}; {len(there.retried):,} sent back earlier, "
        f"{len(there.discarded):,} discarded"
    )


@app.command()
def retry(
    repaired: Annotated[
        Path | None,
        typer.Argument(
            metavar="[FILE]",
            help="Output of `show --json` with each `event` repaired, or null to discard it. "
            "`-`: standard input.",
            show_default=False,
        ),
    ] = None,
    function: Annotated[
        Path | None,
        typer.Option(
            "--with",
            metavar="FILE.py",
            help="Python file with `def repair(event, letter)`, which returns the repaired event, "
            "or None to leave the letter open. Replaces FILE.",
        ),
    ] = None,
    reason: Reason = "",
    topic: Topic = "",
    since: Since = None,
    until: Until = None,
    kafka: KafkaAddress = KAFKA,
    kafka_client: KafkaClient = None,
) -> None:
    """Send repaired events back to their topics. Each is sent once, even if you run it twice."""
    from headrace.deploy.connections import kafka_settings
    from headrace.deploy.errors import BadOption
    from headrace.deploy.termination import stopped_by_signals
    from headrace.ingest.dead_letters import FileRepairs, FunctionRepairs, retry

    if (repaired is None) == (function is None):
        got = "neither" if repaired is None else "both"
        raise BadOption(f"expected either FILE or --with FILE.py, got {got}")
    repairs: FileRepairs | FunctionRepairs
    if function is not None:
        repairs = FunctionRepairs(function)
    else:
        assert repaired is not None
        with ExitStack() as files:
            standard = str(repaired) == "-"
            if not standard and not repaired.is_file():
                raise BadOption(
                    f"expected a file of repaired events, got {repaired}, which does not exist"
                )
            lines = sys.stdin.buffer if standard else files.enter_context(repaired.open("rb"))
            repairs = FileRepairs(lines, "<stdin>" if standard else str(repaired))
    choice = _choice(reason, topic, since, until)
    with stopped_by_signals() as stop:
        done = retry(kafka_settings(kafka, kafka_client), repairs, choice, stop)
    for origin, why in done.refused[:_SHOWN_CHARACTERS]:
        typer.echo(printable(f"not sent, still invalid: {origin}: {why}"), err=True)
    unused = repairs.unused if isinstance(repairs, FileRepairs) and not done.stopped else set()
    if unused:
        typer.echo(
            f"{counted(len(unused), 'repair has', 'repairs have')} no open letter (sent earlier, "
            "or of another topic): "
            f"{', '.join(map(str, sorted(unused)[:5]))}{', ...' if len(unused) > 5 else ''}",
            err=True,
        )
    stopped = "stopped: " if done.stopped else ""
    typer.echo(
        f"{stopped}{counted(done.sent, 'event')} sent back, {done.discarded:,} discarded, "
        f"{counted(done.left, 'letter')} left open"
    )
    if done.refused:
        raise typer.Exit(1)


def _choice(reason: str, topic: str, since: datetime | None, until: datetime | None) -> "Choice":
    from headrace.ingest.dead_letters import Choice

    return Choice(reason, topic, _milliseconds(since) or 0, _milliseconds(until))


def _milliseconds(moment: datetime | None) -> int | None:
    return None if moment is None else int(moment.replace(tzinfo=UTC).timestamp() * 1000)


def _described(letter: "Letter") -> str:
    moment = datetime.fromtimestamp(letter.append_ms / 1000, UTC)
    event = printable(letter.event_bytes.decode(errors="backslashreplace"))
    more = "" if len(event) <= _SHOWN_CHARACTERS else f"... ({letter.value_bytes:,} bytes)"
    key = "" if letter.key is None else f", key {letter.key!r}"
    return (
        f"{printable(str(letter.origin))}{key}, {moment:%Y-%m-%d %H:%M:%S} UTC\n"
        f"  {printable(letter.reason)}\n"
        f"  {event[:_SHOWN_CHARACTERS]}{more}"
    )
