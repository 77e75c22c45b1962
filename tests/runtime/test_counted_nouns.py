"""Counts are followed by the singular or the plural."""

from headrace.runtime.counted_nouns import counted, counted_of


def test_a_count_of_one_has_the_singular_and_other_counts_have_the_plural() -> None:
    assert [counted(count, "row") for count in (0, 1, 2, 2_000)] == [
        *("0 rows", "1 row", "2 rows", "2,000 rows")
    ]
    assert counted(2, "batch") == "2 batches"
    assert counted(1, "row is", "rows are") == "1 row is"
    assert counted(3, "row is", "rows are") == "3 rows are"


def test_a_part_of_one_is_followed_by_the_singular_verb() -> None:
    assert counted_of(1, 5, "clicks has", "clicks have") == "1 of 5 clicks has"
    assert counted_of(3, 5_000, "clicks has", "clicks have") == "3 of 5,000 clicks have"
