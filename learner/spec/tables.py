"""Reading one table of the model spec: what may stand in it, and what is refused by line."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, cast

from headrace.ingest.features import one_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from headrace.ingest.features import SpecText

    Table = Mapping[str, object]


def table_of(tables: Table, where: SpecText, *keys: str) -> Table:
    """Return the table under the last of `keys`, empty if there is none. Raises SpecError."""
    found = tables.get(keys[-1], {})
    if not isinstance(found, dict):
        raise where.error(keys, f"a table [{'.'.join(keys)}]", shown(found))
    return found


def only(table: Table, known: Iterable[str], where: SpecText, *keys: str) -> None:
    """Raise SpecError naming the first key that is not known, and the one perhaps meant."""
    known = tuple(known)
    for key in table:
        if key not in known:
            place = f"in [{'.'.join(keys)}] " if keys else "section "
            raise where.error((*keys, key), f"{place}{one_of(known, key)}", f'"{key}"')


def real(
    table: Table,
    where: SpecText,
    keys: tuple[str, ...],
    key: str,
    default: float | None,
    bounds: tuple[float, float],
) -> float:
    """Return a number within bounds; a default of None: it has to be there. Raises SpecError."""
    found = table.get(key, default)
    least, most = bounds
    if type(found) not in (int, float) or not least <= cast("float", found) <= most:
        raise where.error((*keys, key), f"{key} from {least:g} to {most:g}", shown(found))
    return float(cast("float", found))


def whole(
    table: Table,
    where: SpecText,
    keys: tuple[str, ...],
    key: str,
    default: int | None,
    bounds: tuple[int, int],
) -> int:
    """Return a whole number within bounds, as `real` does. Raises SpecError."""
    found = table.get(key, default)
    least, most = bounds
    if type(found) is not int or not least <= found <= most:
        raise where.error((*keys, key), f"{key}, a whole number {least} to {most}", shown(found))
    return found


def shown(found: object) -> str:
    """Return a value as the spec would write it, more or less."""
    return "nothing" if found is None else json.dumps(found, default=str)
