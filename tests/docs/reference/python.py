"""Lists the Python names that users import, with their signatures and docstrings."""

import importlib
import inspect
import re
from collections.abc import Iterator
from typing import Any

from headrace.learner.spec.schema import attribute_docstrings

HEAD = """# Python

Import these names and no others: the modules behind them may move.
"""
MODULES: dict[str, tuple[str, ...]] = {
    "headrace": (),
    "headrace.sklearn": (),
    "headrace.ingest.client": ("ClientSettings", "UndeliverableEvent", "NotDelivered"),
    "headrace.learner.models.deep": ("NetworkShape", "NetworkBatch", "hidden_layers"),
}
"""Module -> the names to show; without any, those of its `__all__`."""


def page() -> str:
    """Return the page of Python names."""
    parts = [HEAD]
    for name, chosen in MODULES.items():
        module = importlib.import_module(name)
        names = chosen or sorted(getattr(module, "__all__", ()))
        if not names:
            continue
        parts.append(f"\n## `{name}`\n")
        for each in names:
            parts += _described(each, getattr(module, each), "###")
    return "".join(parts)


def _described(name: str, thing: Any, marks: str) -> Iterator[str]:
    yield f"\n{marks} `{name}`\n"
    if callable(thing):
        yield f"\n```python\n{_signature(name, thing)}\n```\n"
    text = inspect.getdoc(thing)
    if text and not text.startswith(f"{name}("):
        yield f"\n{text}\n"
    if inspect.isclass(thing):
        attributes = attribute_docstrings(thing)
        if attributes:
            yield "\n| attribute | |\n|---|---|\n"
            yield from (f"| `{each}` | {_cell(said)} |\n" for each, said in attributes.items())
        for member, value in vars(thing).items():
            if member.startswith("_") or not inspect.getdoc(value):
                continue
            if inspect.isfunction(value) or isinstance(value, classmethod | property):
                yield from _described(f"{name}.{member}", _unbound(value), marks + "#")


def _unbound(value: Any) -> Any:
    return value.__func__ if isinstance(value, classmethod) else value


def _signature(name: str, thing: Any) -> str:
    bare = name.rpartition(".")[2]
    try:
        signature = str(inspect.signature(thing))
    except (TypeError, ValueError):
        return bare
    shown = re.sub(r"(: |-> )'([^']*)'", r"\1\2", signature)
    shown = re.sub(r"ForwardRef\('([^']*)'\)", r"\1", shown)
    shown = re.sub(r"(?:[A-Za-z_]\w*\.)+([A-Za-z_]\w*)", r"\1", shown)
    if inspect.isclass(thing):
        return f"class {bare}{shown.removesuffix(' -> None')}"
    return f"def {bare}{shown}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
