"""Writes every generated page, see the package."""

from tests.docs.pages import DOCS
from tests.docs.reference import PAGES

for name, page in PAGES.items():
    (DOCS / name).write_text(page())
