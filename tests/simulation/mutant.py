"""Removes a check from the product, to test that the simulation notices.

A mutant is a function of the product with a piece of its text replaced. If the product no longer
contains that text, the mutant fails with a message: the check was moved, and the mutant must follow
it. The checks of the store are in functions.lua, and its mutants are that text with a piece
replaced.
"""

import __future__

import importlib
import inspect
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from tests.embedded_valkey import server

FUNCTIONS = "functions.lua"


@dataclass(frozen=True, slots=True)
class Mutant:
    """A check, and its replacement that removes it."""

    name: str
    where: str
    """`module:function`, `module:class.method`, or FUNCTIONS."""
    check: str
    instead: str
    about: str | None = None
    """The kind of world, of `kinds.KINDS`, in whose seeds it is looked for; None: in all kinds as
    they are drawn. A check against a race that is rare in all worlds is common in one."""

    def mutated(self) -> Any:
        """Return the function, or the text of functions.lua, without the check."""
        if self.where == FUNCTIONS:
            return self._without_check(server.LIBRARY)
        module, _, _, original = self._parts()
        code = compile(
            self._without_check(textwrap.dedent(inspect.getsource(original))),
            f"<{self.name}>",
            "exec",
            flags=__future__.annotations.compiler_flag,
        )
        made: dict[str, Any] = {}
        exec(code, vars(module), made)
        return made[original.__name__]

    def _without_check(self, text: str) -> str:
        if text.count(self.check) != 1:
            raise LookupError(f"expected once in {self.where}: {self.check!r}, found:\n{text}")
        return text.replace(self.check, self.instead)

    @contextmanager
    def at_large(self) -> Iterator[None]:
        """Run with the check taken out, wherever the function is known."""
        if self.where == FUNCTIONS:
            with patch.object(server, "LIBRARY", self.mutated()):
                yield
            return
        _, owner, name, original = self._parts()
        owners = [owner]
        if inspect.ismodule(owner):
            modules = list(sys.modules.values())
            owners = [module for module in modules if vars(module).get(name) is original]
        mutated = self.mutated()
        for each in owners:
            setattr(each, name, mutated)
        try:
            yield
        finally:
            for each in owners:
                setattr(each, name, original)

    def _parts(self) -> tuple[Any, Any, str, Any]:
        path, _, inner = self.where.partition(":")
        module = importlib.import_module(path)
        owner: Any = module
        *classes, name = inner.split(".")
        for each in classes:
            owner = getattr(owner, each)
        return module, owner, name, vars(owner)[name]
