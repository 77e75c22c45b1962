"""The generated pages of docs/reference are what the code generates today."""

import pytest

from tests.docs.pages import DOCS
from tests.docs.reference import PAGES


@pytest.mark.parametrize("name", PAGES)
def test_a_generated_page_is_up_to_date(name: str) -> None:
    assert (DOCS / name).read_text() == PAGES[name](), "run python -m tests.docs.reference"
