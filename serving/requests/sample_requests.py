"""Makes requests to show to users: for the page, the OpenAPI document and printed commands.

A spec does not declare which fields describe the request and which a candidate, because an answer
does not depend on it: both kinds together form one impression. A sample should still resemble a
real request. So the user of a history is a field of the request, and its items are fields of a
candidate. For other fields, words in the name decide. A field without such a word is a candidate's.
"""

import re
from typing import Any

from headrace.ingest.events.contract import TIME
from headrace.ingest.features.fields import Field, FieldSet, Transform

# fmt: off
_REQUEST_WORDS = frozenset({
    "app", "audience", "browser", "client", "connection", "consumer", "cookie", "customer",
    "device", "gender", "ip", "listener", "locale", "member", "network", "os", "page",
    "placement", "platform", "player", "query", "reader", "recent", "referer", "referrer",
    "screen", "search", "session", "shopper", "slate", "subscriber", "timezone", "user", "viewer",
    "visit", "visitor", "weekday",
})
# fmt: on
"""Words for the user, the device and the place where the candidates are shown."""
_CANDIDATE_WORDS = frozenset(
    {"ad", "candidate", "index", "item", "position", "product", "rank", "slot"}
)
"""Words that decide against those of the request: a `page_position` differs among candidates."""
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


def context_sources(fields: FieldSet) -> frozenset[str]:
    """Return the raw fields that a sample request puts into its context."""
    of_item = {each.item for each in fields.bags if each.item}
    items = {each.source for each in fields.singles if each.name in of_item}
    of_user = {name for each in fields.bags if each.item for name in each.of}
    users = {each.source for each in fields.singles if each.name in of_user}
    every = {each.source for each in _read_from_events(fields)}
    found = {source for source in every if _is_of_request(source)} | users
    found -= items
    return frozenset(found if found < every else ())  # candidates need a field of their own


def sample_request(fields: FieldSet, candidates: int = 2) -> dict[str, Any]:
    """Return a context and candidates with a value for every field that the model reads."""
    shared = context_sources(fields)
    rows = [sample_fields(fields, number) for number in range(1, candidates + 1)]
    context = {name: value for name, value in rows[0].items() if name in shared}
    own = [{name: row[name] for name in row if name not in shared} for row in rows]
    return {"context": context, "candidates": own}


def sample_fields(fields: FieldSet, number: int) -> dict[str, Any]:
    """Return a value for every field that the model reads. Others get other values by `number`."""
    shared, values = context_sources(fields), dict[str, Any]()
    for each in _read_from_events(fields):
        source = each.source
        if source in values:
            continue
        which = 1 if source in shared else number
        if each.transform is Transform.BAG:
            values[source] = [f"{source}-{which}", f"{source}-{which + 1}"]
        elif each.transform in (Transform.NUMBER, Transform.LOG_BUCKET):
            values[source] = which
        else:
            values[source] = f"{source}-{which}"
    return values


def _read_from_events(fields: FieldSet) -> list[Field]:
    """Return the fields with a value in an event. Others come from fields, rows or the time."""
    # a value for a number or a bag is valid for an id, too, if both read one raw field
    every = (*fields.numbers, *fields.bags, *fields.singles)
    return [each for each in every if each.source and each.source != TIME]


def _is_of_request(source: str) -> bool:
    words = {word.lower() for word in _WORD.findall(source)}
    return bool(words & _REQUEST_WORDS) and not words & _CANDIDATE_WORDS
