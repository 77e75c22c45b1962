"""Runs a Jupyter notebook without Jupyter: its code cells in order, in one namespace.

    python -m tests.docs.notebook examples/notebook/news_site.ipynb    runs it, writes the outputs

An output is what the cell printed, and the value of its last expression, as Jupyter shows them.
"""

import ast
import contextlib
import io
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.docs.walk import EXAMPLES, copy_of_examples


def code_cells(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    """The code cells, in order."""
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def shown(cell: dict[str, Any]) -> str:
    """The outputs that a cell holds, as text."""
    parts = [output.get("text") or output["data"]["text/plain"] for output in cell["outputs"]]
    return "".join("".join(part) for part in parts)


def run(notebook: dict[str, Any], folder: Path) -> list[tuple[str, str]]:
    """Run the code cells in a folder; return what each printed, and the value it ended in."""
    names: dict[str, Any] = {"__name__": "__main__"}
    before = Path.cwd()
    os.chdir(folder)
    try:
        return [_run_cell("".join(cell["source"]), names) for cell in code_cells(notebook)]
    finally:
        os.chdir(before)


def _run_cell(source: str, names: dict[str, Any]) -> tuple[str, str]:
    body = ast.parse(source).body
    last = body.pop() if isinstance(body[-1], ast.Expr) else None
    printed = io.StringIO()
    value = None
    with contextlib.redirect_stdout(printed):
        exec(compile(ast.Module(body, []), "cell", "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
    return printed.getvalue(), "" if value is None else repr(value)


def record(path: Path) -> None:
    """Run a notebook of the examples and write the outputs into it."""
    notebook = json.loads(path.read_text())
    with tempfile.TemporaryDirectory() as home:
        folder = copy_of_examples(Path(home)) / "examples" / path.parent.relative_to(EXAMPLES)
        outputs = run(notebook, folder)
    for count, (cell, (printed, value)) in enumerate(
        zip(code_cells(notebook), outputs, strict=True), start=1
    ):
        cell["execution_count"], cell["outputs"] = count, []
        if printed:
            cell["outputs"].append(
                {"name": "stdout", "output_type": "stream", "text": printed.splitlines(True)}
            )
        if value:
            cell["outputs"].append(
                {
                    "data": {"text/plain": [value]},
                    "execution_count": count,
                    "metadata": {},
                    "output_type": "execute_result",
                }
            )
        print(printed + value)
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    record(Path(sys.argv[1]).resolve())
