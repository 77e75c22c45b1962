"""`headrace ingest dead-letters`: shows invalid events and sends repaired ones back."""

import sys
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from headrace.deploy.errors import BadOption
from headrace.deploy.options import KafkaOptions
from headrace.deploy.process_logs import show_warnings_only
from headrace.runtime.counted_nouns import counted
from headrace.runtime.printable_text import printable
from headrace.runtime.settings import argument, setting
from headrace.runtime.termination import stopped_by_signals

if TYPE_CHECKING:
    from headrace.ingest.dead_letters.letter import Letter
    from headrace.ingest.dead_letters.reader import Choice
    from headrace.ingest.kafka.settings import KafkaSettings


_SHOWN_CHARACTERS = 100


@dataclass(frozen=True, slots=True)
class DeadLettersOptions:
    """Options of `headrace ingest dead-letters`."""

    repaired: Path | None = argument(None, metavar="[FILE]")
    """Output of --json with each `event` repaired, or null to discard it. `-`: standard input."""
    function: Path | None = setting(None, metavar="FILE.py", flag="--with")
    """Instead of FILE: Python file with `def repair(event, letter)`, which returns the repaired
    event, or None to leave the letter open."""
    reason: str = setting("")
    """Only letters with this reason, such as bad_time, or a part of one."""
    topic: str = setting("")
    """Only events of this topic."""
    since: datetime | None = setting(None)
    """Only events received at this time or later (UTC)."""
    until: datetime | None = setting(None)
    """Only events received before this time (UTC)."""
    limit: int = setting(20, least=0)
    """Letters to show. All are counted."""
    json: bool = setting(False)
    """Print every letter as a line of JSON, to repair it."""


def dead_letters(
    options: DeadLettersOptions,
    kafka: KafkaOptions,
) -> None:
    """Show the open dead letters, or send repaired events back to their topics.

    With FILE or --with, each repaired event is sent once, even if you run the command twice.
    """

    settings = kafka.settings()
    if options.repaired is None and options.function is None:
        _show(options, settings)
    else:
        _retry(options, settings)


def _show(options: DeadLettersOptions, kafka: "KafkaSettings") -> None:
    from headrace.ingest.dead_letters.reader import DeadLetters
    from headrace.ingest.dead_letters.repairs import as_line
    from headrace.ingest.kafka.topics import EventTopics

    show_warnings_only()
    there = DeadLetters(kafka, EventTopics().dead_letters)
    letters = there.letters(_choice(options))
    if options.json:
        for letter in letters:
            sys.stdout.buffer.write(as_line(letter) + b"\n")
        sys.stdout.buffer.flush()
        return
    counts: Counter[tuple[str, str, str]] = Counter()
    shown: list[str] = []
    for letter in letters:
        counts[letter.topic, letter.reason_name, letter.reason] += 1
        if len(shown) < options.limit:
            shown.append(_described(letter))
    for (name, word, sentence), count in counts.most_common():
        click.echo(f"{count:>8,}  {name}  {word}: {sentence}")
    for text in shown:
        click.echo(f"\n{text}")
    if counts.total() > len(shown):
        click.echo(f"\n... and {counts.total() - len(shown):,} more (--limit, --json)")
    click.echo(
        f"\n{counted(counts.total(), 'open letter')}; {len(there.retried):,} sent back earlier, "
        f"{len(there.discarded):,} discarded"
    )


def _retry(options: DeadLettersOptions, kafka: "KafkaSettings") -> None:
    from headrace.ingest.dead_letters.letter_retry import retry
    from headrace.ingest.dead_letters.repairs import FileRepairs, function_repairs

    repaired, function = options.repaired, options.function
    if repaired is not None and function is not None:
        raise BadOption("expected either FILE or --with FILE.py, got both")
    edited: FileRepairs | None = None
    if function is not None:
        repairs = function_repairs(function)
    else:
        assert repaired is not None
        with ExitStack() as files:
            standard = str(repaired) == "-"
            if not standard and not repaired.is_file():
                raise BadOption(
                    f"expected a file of repaired events, got {repaired}, which does not exist"
                )
            lines = sys.stdin.buffer if standard else files.enter_context(repaired.open("rb"))
            edited = FileRepairs(lines, "<stdin>" if standard else str(repaired))
            repairs = edited.repair
    with stopped_by_signals() as stop:
        done = retry(kafka, repairs, _choice(options), stop)
    for origin, why in done.refused[:_SHOWN_CHARACTERS]:
        click.echo(printable(f"not sent, still invalid: {origin}: {why}"), err=True)
    unused = edited.unused if edited is not None and not done.stopped else set()
    if unused:
        click.echo(
            f"{counted(len(unused), 'repair has', 'repairs have')} no open letter (sent earlier, "
            "or of another topic): "
            f"{', '.join(map(str, sorted(unused)[:5]))}{', ...' if len(unused) > 5 else ''}",
            err=True,
        )
    stopped = "stopped: " if done.stopped else ""
    click.echo(
        f"{stopped}{counted(done.sent, 'event')} sent back, {done.discarded:,} discarded, "
        f"{counted(done.left, 'letter')} left open"
    )
    if done.refused:
        raise click.exceptions.Exit(1)


def _choice(options: DeadLettersOptions) -> "Choice":
    from headrace.ingest.dead_letters.reader import Choice

    since, until = _milliseconds(options.since), _milliseconds(options.until)
    return Choice(options.reason, options.topic, since or 0, until)


def _milliseconds(moment: datetime | None) -> int | None:
    if moment is None:
        return None
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


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
