"""Two reshards of one model, and two removals of old buckets, with the steps of the store between.

Faults: the token ends while its owner only pauses, a process dies, a call that adds or removes a
bucket is late. The plan, the switch and the comparison at a write are the product's
(`pserver.bucket_generations`).
"""

from collections.abc import Iterator
from typing import NamedTuple

from headrace.pserver import bucket_generations
from headrace.pserver.bucket_generations import BucketGeneration, Generations
from headrace.pserver.errors import StoreError

Bucket = tuple[int, int]
"""Generation and number."""


class Process(NamedTuple):
    """A reshard, or a removal of old buckets."""

    doing: str = "begin"
    read: Generations | None = None
    """The shape as it read it last."""
    planned: BucketGeneration | None = None
    left: tuple[Bucket, ...] = ()
    """Buckets still to remove or fill."""


class State(NamedTuple):
    """The store, and all processes."""

    shape: Generations
    holder: str | None
    buckets: frozenset[Bucket]
    late: frozenset[tuple[str, Bucket]]
    processes: tuple[Process, ...]
    faults: int
    switched: int = 0
    """The greatest generation that was current."""


class ReshardModel:
    """Processes A and B reshard, and C and D remove old buckets."""

    name = "reshard"
    names = "ABCD"

    def start(self, faults: int) -> State:
        """See Model."""
        shape = Generations(BucketGeneration(0, 1, 1))
        return State(shape, None, frozenset({(0, 0)}), frozenset(), (Process(),) * 4, faults)

    def broken(self, state: State) -> str:
        """See Model."""
        missing = set(_all(state.shape.current)) - state.buckets
        if missing:
            return f"current buckets are missing: {sorted(missing)}"
        current = state.shape.current.generation
        return "old buckets are current again" if current < state.switched else ""

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        """See Model."""
        for what, bucket in state.late:
            left = state._replace(late=state.late - {(what, bucket)})
            yield f"late {what}: bucket {bucket}", _changed(left, what, bucket)
        for index, name in enumerate(self.names):
            process = state.processes[index]
            if process.doing == "end":
                continue
            step = _reshard if name in "AB" else _removal
            for what, after in step(state, name, process):
                yield f"{name} {what}", after
            if state.faults and process != Process():
                less = state._replace(faults=state.faults - 1)
                yield f"{name} dies", _with(less, name, Process("end"))
        if state.holder is not None:
            ended = state._replace(holder=None)
            if state.processes[self.names.index(state.holder)].doing == "end":
                yield "token of the dead ends", ended
            elif state.faults:
                yield "token ends", ended._replace(faults=state.faults - 1)


def _all(generation: BucketGeneration | None) -> tuple[Bucket, ...]:
    if generation is None:
        return ()
    return tuple((generation.generation, bucket) for bucket in range(generation.buckets))


def _changed(state: State, what: str, bucket: Bucket) -> State:
    buckets = state.buckets | {bucket} if what == "fill" else state.buckets - {bucket}
    return state._replace(buckets=buckets)


def _with(state: State, name: str, process: Process) -> State:
    index = ReshardModel.names.index(name)
    processes = (*state.processes[:index], process, *state.processes[index + 1 :])
    return state._replace(processes=processes)


def _written(state: State, name: str, process: Process) -> Iterator[tuple[str, State]]:
    """Fill or remove the next bucket, at once or late."""
    what = "fill" if process.doing == "fill" else "drop"
    bucket, *rest = process.left
    again = "renew" if what == "fill" else process.doing
    after = _with(state, name, process._replace(left=tuple(rest), doing=again))
    yield f"{what}: bucket {bucket}", _changed(after, what, bucket)
    if state.faults:
        late = after._replace(late=state.late | {(what, bucket)}, faults=state.faults - 1)
        yield f"{what} is late: bucket {bucket}", late


def _replaced(state: State, process: Process, now: Generations, token: str) -> State | None:
    if bucket_generations.may_replace(state.shape, process.read, state.holder, token):
        switched = max(state.switched, now.current.generation)
        return state._replace(shape=now, switched=switched)
    return None


def _reshard(  # noqa: C901
    state: State, name: str, process: Process
) -> Iterator[tuple[str, State]]:
    failed = _with(state, name, process._replace(doing="release"))
    match process.doing:
        case "begin" if state.holder is None:
            taken = state._replace(holder=name)
            yield "takes the token", _with(taken, name, process._replace(doing="read"))
        case "read":
            yield "reads", _with(state, name, Process("plan", state.shape))
        case "plan":
            assert process.read is not None
            try:
                now = process.read.plan(2 * process.read.current.buckets, 1)
            except StoreError:
                yield "gives up", failed
                return
            planned = _replaced(state, process, now, name)
            if planned is None:
                yield "cannot plan", failed
                return
            left = tuple(bucket for each in now.abandoned for bucket in _all(each))
            new = Process("drop", None, now.planned, left)
            yield f"plans: {now.planned}", _with(planned, name, new)
        case "drop" if process.left:
            yield from _written(state, name, process)
        case "drop":
            begun = process._replace(doing="renew", left=_all(process.planned))
            yield "begins to fill", _with(state, name, begun)
        case "renew" if state.holder != name:
            yield "lost the token", failed
        case "renew":
            doing = "fill" if process.left else "read again"
            yield f"renews the token, to {doing}", _with(state, name, process._replace(doing=doing))
        case "fill":
            yield from _written(state, name, process)
        case "read again":
            whole = state.buckets.issuperset(_all(process.planned))
            read = process._replace(doing="switch", read=state.shape)
            yield f"finds its buckets: {whole}", _with(state, name, read) if whole else failed
        case "switch":
            assert process.read is not None
            try:
                now = process.read.switch(process.planned)
            except StoreError:
                yield "does not switch", failed
                return
            switched = _replaced(state, process, now, name)
            after = _with(switched, name, process._replace(doing="release")) if switched else failed
            yield "switches" if switched else "cannot switch", after
        case "release":
            holder = None if state.holder == name else state.holder
            yield "ends", _with(state._replace(holder=holder), name, Process("end"))


def _removal(state: State, name: str, process: Process) -> Iterator[tuple[str, State]]:
    match process.doing:
        case "begin" if state.shape.superseded is not None:
            read = Process("drop", state.shape, left=_all(state.shape.superseded))
            yield f"reads: {state.shape}", _with(state, name, read)
        case "drop" if process.left:
            yield from _written(state, name, process)
        case "drop":
            assert process.read is not None
            now = process.read.without_superseded()
            forgotten = _replaced(state, process, now, "")
            yield "forgets them", _with(forgotten or state, name, Process("end"))
