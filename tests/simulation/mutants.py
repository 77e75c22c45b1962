"""Checks taken out one at a time, to see that the simulation would notice.

A mutant is a function of the product with a piece of its text replaced. If the text is no longer
there, the mutant says so: then the check has moved, and its mutant must move with it.
"""

from __future__ import annotations
import __future__

import importlib
import inspect
import sys
import textwrap
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@dataclass(frozen=True, slots=True)
class Mutant:
    """A check, and its replacement that removes it."""

    name: str
    where: str
    """`module:function` or `module:class.method`"""
    check: str
    instead: str
    found_by: int = 0
    """A seed at or soon before one that notices, so that a test need not look for long."""
    about: str | None = None
    """The kind of world, of `plan.KINDS`, in whose seeds it is looked for; None: in all kinds as
    they are drawn. A check against a race that is rare in all worlds is common in one."""

    def mutated(self) -> Callable[..., Any]:
        """Return the function without the check."""
        module, _, _, original = self._parts()
        text = textwrap.dedent(inspect.getsource(original))
        if text.count(self.check) != 1:
            raise LookupError(f"expected once in {self.where}: {self.check!r}, found:\n{text}")
        code = compile(
            text.replace(self.check, self.instead),
            f"<{self.name}>",
            "exec",
            flags=__future__.annotations.compiler_flag,
        )
        made: dict[str, Any] = {}
        exec(code, vars(module), made)
        function: Callable[..., Any] = made[original.__name__]
        return function

    @contextmanager
    def at_large(self) -> Iterator[None]:
        """Run with the check taken out, wherever the function is known."""
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


MUTANTS = (
    Mutant(
        "a push need not begin at the marks",
        "headrace.pserver.memory_store:MemoryStore._push",
        "if all(state.marks.get(span.source, 0) == span.start for span in push.spans):",
        "if True:",
    ),
    Mutant(
        "a follower does not compare the nonces between entries",
        "headrace.pserver.replica.log_chain:_links",
        " or entry.previous != nonce",
        "",
    ),
    Mutant(
        "folds and trims need no lease",
        "headrace.pserver.memory_store:MemoryStore._refusal",
        "state.keeper != keeper or self._clock_ms() >= state.lease_ms",
        "False",
    ),
    Mutant(
        "folds and trims need not know how many folds there were",
        "headrace.pserver.memory_store:MemoryStore._refusal",
        "state.folds != folds",
        "False",
        160,
    ),
    Mutant(
        "a copy adds entries to rows that have them",
        "headrace.pserver.replica.replica:_Copy._apply",
        "lacking = self.versions[places] < version",
        "lacking = self.versions[places] >= 0",
    ),
    Mutant(
        "a learner folds its own entry at any position",
        "headrace.pserver.replica.replica:Replica.fold_own",
        "not position.precedes(version, previous_nonce)",
        "False",
    ),
    Mutant(
        "every example counts in every bucket",
        "headrace.learner.loop.cursors:Cursors.active",
        "self._cursors[source] <= offset",
        "self._cursors[source] >= 0",
    ),
    Mutant(
        "a learner does not compare marks now and then",
        "headrace.learner.loop.learner:Learner._recheck",
        "if self._pushes.awaited or now < self._recheck_at_ms:",
        "if True:",
    ),
    Mutant(
        "a learner pushes before its scores are delivered",
        "headrace.learner.loop.learner:Learner._seal",
        "self._outputs.flush()",
        "pass",
    ),
    Mutant(
        "a follower does not compare the nonce of the head",
        "headrace.pserver.replica.log_chain:chain",
        " or (polled.version == version and polled.nonce != nonce)",
        "",
        21,
    ),
    Mutant(
        "a follower does not notice that the head went back",
        "headrace.pserver.replica.log_chain:chain",
        "polled.version < version or ",
        "",
        110,
    ),
    Mutant(
        "a trim need not know the log from where it begins",
        "headrace.pserver.memory_store:MemoryStore._trim",
        "state.trimmed < trim.trimmed",
        "False",
        163,
    ),
    Mutant(
        "a copy keeps rows of a history that was taken back",
        "headrace.pserver.replica.replica:Replica._copy",
        "(newer := copy.newer_than(known)).shape[0]",
        "False",
        17,
    ),
    Mutant(
        "folds and trims need not name an entry of this history",
        "headrace.pserver.memory_store:MemoryStore._refusal",
        "known.get(named.version) != named.nonce",
        "False",
        11,
        "at war",
    ),
    Mutant(
        "a copy does not notice that folds were lost under it",
        "headrace.pserver.replica.replica:Replica._copy",
        "chunk.trimmed < start.trimmed",
        "False",
        29,
        "unfolding",
    ),
    Mutant(
        "a learner folds its own entry regardless of the entry before it",
        "headrace.pserver.replica.log_chain:LogPosition.precedes",
        " and previous == self.nonce",
        "",
        1,
        "overtaken",
    ),
    Mutant(
        "a learner takes any entry at the head for its own",
        "headrace.learner.loop.pushes:Pushes._applied",
        "answer.nonce == flight.push.nonce",
        "True",
        12,
        "unanswered",
    ),
)
