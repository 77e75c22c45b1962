"""Reads the docstrings below the attributes of a class, which Python does not keep."""

from __future__ import annotations

import ast
import inspect
import textwrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


def attribute_docstrings(kind: type) -> Iterator[tuple[str, str]]:
    """Yield name and text of each attribute that a class of headrace itself documents."""
    if not kind.__module__.startswith("headrace."):
        return
    [tree] = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(tree, ast.ClassDef)
    for before, after in zip(tree.body, tree.body[1:], strict=False):
        if not isinstance(before, ast.AnnAssign) or not isinstance(before.target, ast.Name):
            continue
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            yield before.target.id, " ".join(str(after.value.value).split())
