"""Lists and checks what a model has parked, and sends an operator's request about it."""

import re
import secrets
from collections.abc import Iterator, Sequence

from headrace.deploy.errors import BadOption
from headrace.deploy.operations.check_result import CheckResult, Severity
from headrace.deploy.operations.examples_topic import ExamplesBounds
from headrace.learner.loop.marks.parked_marks import ParkedMessage, ParkedRequest, parked_messages
from headrace.learner.loop.marks.parked_requests import ask, read_parked
from headrace.pserver.inspection.model_survey import Survey
from headrace.pserver.store import Store
from headrace.runtime.counted_nouns import counted

_PLACE = re.compile(r"(\d+)@(\d+)")
_NONE = (1 << 62, 0)
"""The offsets of a topic that was deleted: Kafka holds none of its messages."""
_SAID = {
    ParkedRequest.NOTHING: "",
    ParkedRequest.LEARN: ", to be learned",
    ParkedRequest.DROP: ", to be dropped",
}


def parked_summary(parked: Sequence[ParkedMessage]) -> str:
    """Return how much is parked, as a phrase."""
    examples = counted(sum(each.examples for each in parked), "example")
    return f"{examples} parked in {counted(len(parked), 'message')}"


def parked_text(parked: Sequence[ParkedMessage], buckets: int) -> str:
    """Return parked messages for people, one a line. buckets: of the model."""
    lines = [parked_summary(parked)]
    for each in parked:
        some = "" if each.buckets == buckets else f", in {each.buckets} of {buckets} buckets"
        place = f"{each.partition}@{each.offset}"
        why = f" ({each.cause})" if each.cause else ""
        lines.append(
            f"{place}: {counted(each.examples, 'example')}{why}{some}{_SAID[each.request]}"
        )
    return "\n".join(lines)


def ask_about(store: Store, places: Sequence[str], request: ParkedRequest) -> list[ParkedMessage]:
    """Ask learners to learn or to drop parked messages; return those that were asked about.

    places: each `PARTITION@OFFSET`, or `all`. Raises BadOption, StoreError.
    """
    parked = read_parked(store)
    chosen: list[ParkedMessage] = []
    for place in places:
        found = _PLACE.fullmatch(place)
        if found is None and place != "all":
            raise BadOption(f"expected PARTITION@OFFSET or all, got {place!r}")
        wanted = [
            each
            for each in parked
            if found is None or (str(each.partition), str(each.offset)) == (found[1], found[2])
        ]
        if found is not None and not wanted:
            raise BadOption(
                f"expected the place of a parked message, got {place}: it was never parked, or is "
                "learned or dropped by now. headrace learner parked lists them"
            )
        chosen += wanted
    for each in chosen:
        ask(store, each, request, lambda: secrets.token_bytes(8))
    return chosen


def check_parked(survey: Survey, topic: ExamplesBounds | None) -> Iterator[CheckResult]:
    """Report what is parked, and what of it Kafka no longer holds."""
    parked = parked_messages(each.marks for each in survey.buckets if each.there)
    if not parked:
        return
    bounds = topic.bounds if topic else {}
    lost = [each for each in parked if bounds and each.offset < bounds.get(each.source, _NONE)[0]]
    found = parked_summary(parked)
    if lost:
        found += f", {len(lost)} of them lost: Kafka deleted the messages"
    yield CheckResult(
        Severity.WARNING,
        "buckets",
        survey.model,
        "every example learned",
        found,
        "headrace learner parked lists them, and asks learners to learn or drop them",
    )
