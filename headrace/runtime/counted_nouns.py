"""Counts with their nouns: 1 row, 2,000 rows."""


def counted(count: int, one: str, several: str = "") -> str:
    """Return a count and what it counts.

    one: the words after a count of 1, such as `row` or `row is`. several: the words after every
    other count, if they are not `one` with the ending of the plural.
    """
    if count == 1:
        return f"1 {one}"
    return f"{count:,} {several or one + ('es' if one.endswith('ch') else 's')}"


def counted_of(count: int, whole: int, one: str, several: str) -> str:
    """Return a part of a count: 1 of 5 clicks has, 3 of 5 clicks have.

    one, several: the words after the counts, such as `clicks has` and `clicks have`.
    """
    return f"{count:,} of {whole:,} {one if count == 1 else several}"
