"""Lists the mutants of parking: checks of the product that are removed one at a time."""

from __future__ import annotations

from tests.simulation.mutant import FUNCTIONS, Mutant

PARKING_MUTANTS = (
    Mutant(
        "a bucket that went back still counts as having parked what it lost",
        "headrace.learner.loop.marks.parked_cursors:ParkedCursors.discard",
        "if source in sources and offset >= marks.get(source, 0):",
        "if False:",
        10,
        "parked",
    ),
    Mutant(
        "what is parked stays pending when a batch is undone",
        "headrace.learner.loop.marks.parked_cursors:ParkedCursors.undo",
        "self._pending[bucket] = kept",
        "pass",
        7,
        "parked",
    ),
    Mutant(
        "a learner does not see what a bucket parks again",
        "headrace.learner.loop.marks.parked_cursors:ParkedCursors.agrees",
        "self._adopt(bucket, marks, self._owned)",
        "pass",
        9,
        "parked",
    ),
    Mutant(
        "a parked message is learned in buckets that have not reached it",
        "headrace.learner.loop.parked_examples:ParkedExamples.active",
        "return self._cursors.parked.active(",
        "return unread | self._cursors.parked.active(",
        4,
        "parked",
    ),
    Mutant(
        "a message that some buckets parked is learned by the others alone",
        "headrace.learner.loop.parked_examples:ParkedExamples.before",
        "if (batch.name, batch.offset) in self._cursors.parked:",
        "if False:",
        124,
        "parked",
    ),
    Mutant(
        "a suspect message is passed without a mark",
        "headrace.learner.loop.parked_examples:ParkedExamples.park",
        "self._cursors.parked.park(*place, count, self._intake.active(batch))",
        "pass",
        0,
        "parked",
    ),
    Mutant(
        "a learned message stays parked",
        "headrace.learner.loop.parked_examples:ParkedExamples.learned",
        "self._cursors.parked.end(batch.name, batch.offset)",
        "pass",
        0,
        "parked",
    ),
    Mutant(
        "a lost partition keeps its parked messages",
        "headrace.learner.loop.marks.parked_cursors:ParkedCursors.lost",
        "self._owned.discard(source)",
        "pass",
        1,
        "parked",
    ),
    Mutant(
        "a mark that a push moves back to 0 stays",
        FUNCTIONS,
        "if args[i + 2] == '0' then",
        "if false then",
        0,
        "parked",
    ),
    Mutant(
        "a dropped message has no dead letter",
        "headrace.learner.loop.parked_examples:ParkedExamples.take",
        "outputs.report(figures, [HeldExamples(batch, np.arange(len(batch.examples)), reason)])",
        "pass",
        59,
        "parked",
    ),
)
