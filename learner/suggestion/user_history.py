"""Finds the history of a user and the field to compare it with, for architectures that read one.

A bag whose items are values of a field of ids is a history that events contain. Otherwise the
learner can keep the items that each user clicked last, if the log says the user and the item.
"""

import re
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.ingest.features.cells.values import texts_of
from headrace.ingest.features.spec_text import SpecError
from headrace.learner.suggestion.column_profile import ColumnProfile
from headrace.learner.suggestion.log_sample import LogSample
from headrace.learner.suggestion.spec_draft import DraftInput, SpecDraft

_LEAST_COMMON = 0.1
"""Share of the items of a bag that are values of the target."""
_USER_NAME = re.compile(r"user|visitor|listener|member|customer|reader|viewer", re.IGNORECASE)
_VARIES = 0.5
"""Share of the requests with several candidates in which the items differ."""
_LAST = 20


def with_history(
    draft: SpecDraft, fields: Mapping[str, ColumnProfile], sample: LogSample
) -> SpecDraft:
    """Return the draft with a history and its target. Raises SpecError if the log has none.

    fields: by name.
    """
    ids = {name: each for name, each in fields.items() if each.codes is not None}
    shares = {
        (bag, name): _common(sample.columns[each.source], sample.columns[ids[name].source])
        for bag, each in fields.items()
        if each.transform == "bag"
        for name in ids
    }
    bag, target = max(shares, key=lambda pair: shares[pair], default=("", ""))
    if shares.get((bag, target), 0.0) >= _LEAST_COMMON:
        plain = tuple(  # attention weighs the items
            each._replace(keys='transform = "bag"' + each.keys.partition('"sqrt"')[2])
            if each.name == bag
            else each
            for each in draft.fields
        )
        return replace(draft, fields=plain, history=bag, target=target)
    kept = recent_clicks(fields, sample)
    if kept is None:
        raise SpecError(
            f"expected a user's history for the architecture {draft.architecture}: a column of "
            "lists of earlier items whose values another column has, or ids of a user and a "
            "request_id that several items share; got neither. Name these columns in a layout, or "
            "write history and target by hand"
        )
    history, target = kept
    return replace(draft.adding((history,), ()), history=history.name, target=target)


def recent_clicks(
    fields: Mapping[str, ColumnProfile], sample: LogSample
) -> tuple[DraftInput, str] | None:
    """Return the field of a user's last clicked items that the learner keeps, and that of items.

    None if the log does not name the user and the items.
    """
    ids = {name: each for name, each in fields.items() if each.codes is not None}
    user = next((name for name in ids if _USER_NAME.search(name)), None)
    items = [name for name in ids if name != user and _varies(ids[name], sample.requests)]
    if user is None or not items:
        return None
    target = max(items, key=lambda name: ids[name].distinct)
    keys = f'transform = "history", of = "{user}", item = "{target}", last = {_LAST}'
    said = f"the {_LAST} items that the user clicked last; the learner keeps them"
    name = "recent_clicks"
    while name in fields:
        name += "_kept"
    return DraftInput(name, keys, said), target


def _common(lists: pa.Array, values: pa.Array) -> float:
    """Return the share of the items of lists that are among the values of a column."""
    items = texts_of(pc.list_flatten(lists))
    among = pc.is_in(items, value_set=texts_of(values).unique())
    return float(pc.mean(among).as_py() or 0.0)


def _varies(profile: ColumnProfile, requests: np.ndarray) -> bool:
    """Whether the candidates of most requests have different values."""
    assert profile.codes is not None
    known = requests >= 0
    sizes = np.bincount(requests[known])
    size = int(profile.codes.max()) + 1
    pairs = np.unique(requests[known] * size + profile.codes[known])
    different = np.bincount(pairs // size, minlength=sizes.shape[0])
    several = sizes > 1
    return bool(several.any() and (different[several] > 1).mean() > _VARIES)
