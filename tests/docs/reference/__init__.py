"""Generates the pages of docs/reference from the code that they describe.

python -m tests.docs.reference    writes them anew; a test holds them up to date
"""

from tests.docs.reference import cli, http, layout, metrics, python, spec

PAGES = {
    "reference/cli.md": cli.page,
    "reference/http.md": http.page,
    "reference/layout.md": layout.page,
    "reference/metrics.md": metrics.page,
    "reference/python.md": python.page,
    "reference/spec.md": spec.page,
}
"""Path below docs/ -> the function that returns the page's text."""
