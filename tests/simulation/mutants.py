"""Removes checks one at a time, to test that the simulation notices.

A mutant is a function of the product with a piece of its text replaced. If the product no longer
contains that text, the mutant fails with a message: the check was moved, and the mutant must follow
it. The checks of the store are in functions.lua, and its mutants are that text with a piece
replaced.
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
from unittest.mock import patch

from tests.embedded_valkey import server

if TYPE_CHECKING:
    from collections.abc import Iterator

FUNCTIONS = "functions.lua"


@dataclass(frozen=True, slots=True)
class Mutant:
    """A check, and its replacement that removes it."""

    name: str
    where: str
    """`module:function`, `module:class.method`, or FUNCTIONS."""
    check: str
    instead: str
    found_by: int = 0
    """A seed at or soon before one that notices, so that a test need not look for long."""
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


MUTANTS = (
    Mutant(
        "a push need not begin at the marks",
        FUNCTIONS,
        "found[place] == args[i + 1]",
        "true",
        1,
    ),
    Mutant(
        "a push need not begin at the marks of all its sources",
        FUNCTIONS,
        "applies and found[place]",
        "found[place]",
        22,
        "unanswered",
    ),
    Mutant(
        "a follower does not compare the nonces between entries",
        "headrace.pserver.replica.log_chain:_links",
        " or entry.previous != nonce",
        "",
        4,
    ),
    Mutant(
        "folds and trims need not be those of the keeper with the lease",
        FUNCTIONS,
        "if found[3] ~= keeper then",
        "if false then",
        27,
    ),
    Mutant(
        "folds and trims need a lease that may have ended",
        FUNCTIONS,
        "if now_ms() >= tonumber(found[4]) then",
        "if false then",
        21,
    ),
    Mutant(
        "a lease can be taken before its end",
        FUNCTIONS,
        "if found[2] ~= '' and now < tonumber(found[3]) then",
        "if false then",
    ),
    Mutant(
        "any keeper can release a lease",
        FUNCTIONS,
        "if redis.call('HGET', keys[1], 'keeper') == args[1] then",
        "if true then",
        23,
    ),
    Mutant(
        "folds are counted on under another lease",
        FUNCTIONS,
        "'keeper', args[1], 'folds', '0'",
        "'keeper', args[1]",
    ),
    Mutant(
        "an entry names the wrong entry before it",
        FUNCTIONS,
        "'previous', head[2], 'blob'",
        "'previous', nonce, 'blob'",
    ),
    Mutant(
        "a fold does not remove the rows that are gone",
        FUNCTIONS,
        "in_parts('HDEL'",
        "local _ = (function() end)('HDEL'",
        35,
    ),
    Mutant(
        "folds and trims need not know how many folds there were",
        FUNCTIONS,
        "if found[5] ~= folds then",
        "if false then",
        19,
        "at war",
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
        2,
    ),
    Mutant(
        "every example counts in every bucket",
        "headrace.learner.loop.cursors:Cursors.active",
        "self._cursors[source] <= offset",
        "self._cursors[source] >= 0",
        2,
    ),
    Mutant(
        "a learner does not compare marks now and then",
        "headrace.learner.loop.learner:Learner._recheck",
        "if self._pushes.awaited or now < self._recheck_at_ms:",
        "if True:",
        7,
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
        0,
        "cut off",
    ),
    Mutant(
        "a follower does not notice that the head went back",
        "headrace.pserver.replica.log_chain:chain",
        "polled.version < version or ",
        "",
        55,
        "cut off",
    ),
    Mutant(
        "a trim need not know the log from where it begins",
        FUNCTIONS,
        "if tonumber(redis.call('HGET', marks, 'trimmed')) < tonumber(args[6]) then",
        "if false then",
        21,
        "handing over",
    ),
    Mutant(
        "a copy keeps rows of a history that was taken back",
        "headrace.pserver.replica.replica:Replica._copy",
        "(newer := copy.newer_than(known)).shape[0]",
        "False",
        0,
        "copying",
    ),
    Mutant(
        "folds and trims need not name an entry of this history",
        FUNCTIONS,
        "if not entry or entry[2][2] ~= nonce then",
        "if false then",
        72,
        "at war",
    ),
    Mutant(
        "a copy does not notice that folds were lost under it",
        "headrace.pserver.replica.replica:Replica._copy",
        "chunk.trimmed < start.trimmed",
        "False",
        17,
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
    Mutant(
        "a learner's intervals run on the wall clock",
        "headrace.learner.loop.learner:Learner.__init__",
        "clocks.steady_ms, clocks.rest",
        "clocks.wall_ms, clocks.rest",
        21,
    ),
    Mutant(
        "a learner does not compare the topic before a push",
        "headrace.learner.loop.example_queue:ExampleQueue.check_topics",
        "(now := self._reader.topic_id(topic)) != before",
        "(now := self._reader.topic_id(topic)) is None",
        0,
        "made again",
    ),
    Mutant(
        "a learner begins a topic made again without its operator",
        "headrace.learner.loop.example_queue:ExampleQueue.check_marks",
        "if identity != self._accept_gaps:",
        "if False:",
        0,
        "made again",
    ),
    Mutant(
        "a learner pushes gains that the guard refuses",
        "headrace.learner.loop.learner:Learner._push",
        "(why := self._guard.refuses_push(self._pending)) is not None",
        "(why := self._guard.refuses_push(self._pending)) == 0",
        0,
        "poisoned",
    ),
    Mutant(
        "a batch whose scores are infinite is learned",
        "headrace.learner.loop.batch_guard:BatchGuard.judge",
        "not np.isfinite(made).all()",
        "False",
        0,
        "poisoned",
    ),
    Mutant(
        "the gains of each batch are not compared after a push was refused",
        "headrace.learner.loop.batch_guard:BatchGuard.accepts",
        "pending.largest() if self.careful else 0.0",
        "0.0",
        0,
        "poisoned",
    ),
    Mutant(
        "an undo forgets the gains in flight",
        "headrace.learner.loop.pushes:Pushes.undo",
        "flight.deltas if flight else None",
        "None",
        1,
        "poisoned",
    ),
    Mutant(
        "an undo forgets the offsets in flight",
        "headrace.learner.loop.pushes:Pushes.undo",
        "flight.push.spans if flight else ()",
        "()",
        0,
        "poisoned",
    ),
    Mutant(
        "a quarantined batch has no dead letter",
        "headrace.learner.loop.outputs:LearnerOutputs.send_letter",
        "self._writer.send(Source(self._dead_letter_topic, 0), letter)",
        "pass",
        0,
        "poisoned",
    ),
    Mutant(
        "a bucket restored from before the topic goes on with it",
        "headrace.learner.loop.topic_marks:check_topic_marks",
        "if behind := buckets_behind(topic_id, marks):",
        "if behind := []:",
        1,
        "restored before",
    ),
    Mutant(
        "an accepted topic is accepted for as long as the learner runs",
        "headrace.learner.loop.example_queue:ExampleQueue.commit",
        'self._accept_gaps = ""',
        "pass",
        1,
        "restored before",
    ),
)
