"""docs/guides/million.md is true: its table follows from its formulas."""

import re

from tests.docs.pages import DOCS

PAGE = (DOCS / "guides/million.md").read_text()
FLOATS, ENTRIES = 18, 500
_LOAD = r"R . ([\d.]+) µs \+ N . ([\d.]+) µs"


def _core(part: str, rows: float) -> float:
    """Return the share of a core for following, by the formula of a part."""
    row_us, entry_us = re.search(rf"\| {part} \|.*?{_LOAD}", PAGE).groups()  # type: ignore[union-attr]
    return 1e-6 * (rows * float(row_us) + ENTRIES * float(entry_us))


def test_the_table_of_limits_follows_from_the_formulas_of_the_page() -> None:
    bytes_of = re.search(r"R . \((\d+) \+ (\d+) . floats\) \+ N . (\d+) bytes", PAGE)
    assert bytes_of is not None
    fixed, each, entry = map(int, bytes_of.groups())
    table = PAGE.split("| rows/s in the logs |")[1].split("\n\n")[0]
    rows = [line.split("|")[1:-1] for line in table.splitlines()[2:]]
    assert len(rows) == 4
    for pushed, *shown in rows:
        count = float(pushed.replace(",", ""))
        mb = (count * (fixed + each * FLOATS) + ENTRIES * entry) / 1e6
        expected = [f"{_core('one learner', count):.0%}", f"{_core('one server', count):.0%}"]
        found = [text.strip().replace(" %", "%") for text in shown]
        assert found == [*expected, f"{mb:.0f} MB/s"], pushed
