"""`headrace ingest dead-letters`: shows invalid events and sends repaired ones back."""

import sys
from collections import Counter
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from headrace.counted_nouns import counted
from headrace.deploy.cli.options import KAFKA, KAFKA_CLIENT
from headrace.printable_text import printable
from headrace.settings import argument, setting

if TYPE_CHECKING:
    from headrace.ingest.dead_letters.letter import Letter
    from headrace.ingest.dead_letters.reader import Choice


_SHOWN_CHARACTERS = 100

REASON = setting("", "Only letters with this reason, such as bad_time, or a part of one.")
TOPIC = setting("", "Only events of this topic.")
SINCE = setting(None, "Only events received at this time or later (UTC).")
UNTIL = setting(None, "Only events received before this time (UTC).")


def show(
    reason: str = REASON,
    topic: str = TOPIC,
    since: datetime | None = SINCE,
    until: datetime | None = UNTIL,
    limit: int = setting(20, "Letters to show. All are counted.", least=0),
    json: bool = setting(False, "Print every letter as a line of JSON, the input of `retry`."),
    kafka: str = KAFKA,
    kafka_client: list[str] | None = KAFKA_CLIENT,
) -> None:
    """Show the open dead letters: the count of each reason, and the events."""
    from headrace.deploy.connections import kafka_settings
    from headrace.deploy.process_logs import show_warnings_only
    from headrace.ingest.dead_letters.reader import DeadLetters
    from headrace.ingest.dead_letters.repairs import as_line
    from headrace.ingest.kafka.topics import EventTopics

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
        click.echo(f"{count:>8,}  {name}  {word}: {sentence}")
    for text in shown:
        click.echo(f"\n{text}")
    if counts.total() > len(shown):
        click.echo(f"\n... and {counts.total() - len(shown):,} more (--limit, --json)")
    click.echo(
        f"\n{counted(counts.total(), 'open letter')}; {len(there.retried):,} sent back earlier, "
        f"{len(there.discarded):,} discarded"
    )


def retry(
    repaired: Path | None = argument(
        None,
        "Output of `show --json` with each `event` repaired, or null to discard it. "
        "`-`: standard input.",
        metavar="[FILE]",
    ),
    function: Path | None = setting(
        None,
        "Python file with `def repair(event, letter)`, which returns the repaired event, "
        "or None to leave the letter open. Replaces FILE.",
        metavar="FILE.py",
        flag="--with",
    ),
    reason: str = REASON,
    topic: str = TOPIC,
    since: datetime | None = SINCE,
    until: datetime | None = UNTIL,
    kafka: str = KAFKA,
    kafka_client: list[str] | None = KAFKA_CLIENT,
) -> None:
    """Send repaired events back to their topics. Each is sent once, even if you run it twice."""
    from headrace.deploy.connections import kafka_settings
    from headrace.deploy.errors import BadOption
    from headrace.deploy.termination import stopped_by_signals
    from headrace.ingest.dead_letters.letter_retry import retry
    from headrace.ingest.dead_letters.repairs import FileRepairs, FunctionRepairs

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
        click.echo(printable(f"not sent, still invalid: {origin}: {why}"), err=True)
    unused = repairs.unused if isinstance(repairs, FileRepairs) and not done.stopped else set()
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


def _choice(reason: str, topic: str, since: datetime | None, until: datetime | None) -> "Choice":
    from headrace.ingest.dead_letters.reader import Choice

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
