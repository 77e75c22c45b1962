"""A joiner and the transactions of a broker (protocol version 1), in one partition.

Each event becomes one example. A transaction takes one or two events and writes a message for each,
the last one with the checkpoint. The offsets go before, between or behind the messages, as the
client sends these in the background. Faults: a request leaves a copy behind that arrives at any
later time, a request is not answered, the joiner dies, a broker answers with old offsets.

The product's: the position at which a joiner continues (`last_position.continue_at`). Two rules of
`ingest.kafka.transactions` are fields of the model: it closes the producer after an abort, and
after a connection was lost.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from headrace.ingest.joiner import last_position
from headrace.ingest.joiner.committed_state import SavedCheckpoint
from headrace.ingest.joiner.core.checkpoint import (
    InputPosition,
    JoinerCheckpoint,
    JoinerCounters,
)

NO_EVENT = -1
"""Of the empty batch with which a partition begins."""

Position = tuple[int, int]
"""Events joined, and the number of the last transaction with a message."""


class Message(NamedTuple):
    """One message in the log."""

    event: int
    transaction: int
    checkpoint: Position | None
    status: str = "open"


class Request(NamedTuple):
    """One request of the producer."""

    kind: str
    epoch: int = 0
    message: Message | None = None
    position: Position | None = None
    commit: bool = True


class Broker(NamedTuple):
    """The coordinator of the producer, the log, and the committed offsets."""

    epoch: int = 1
    ongoing: bool = False
    added: bool = False
    with_offsets: bool = False
    pending: Position | None = None
    ended: bool | None = None
    log: tuple[Message, ...] = ()
    committed: Position | None = None
    earlier: Position | None = None
    """Committed offsets before the last ones."""


class State(NamedTuple):
    """Broker and joiner."""

    broker: Broker
    late: frozenset[Request]
    faults: int
    epoch: int = 1
    """Of the joiner's producer."""
    close_next: bool = False
    """Whether the connection was lost during the transaction."""
    at: int = 0
    name: int = 0
    skip: tuple[int, ...] = ()
    """Events ahead of the position whose examples are in the topic."""
    until: int = 0
    """Where the transaction of `skip` would have ended."""
    sealed: bool = False
    todo: tuple[Request, ...] = ()
    after: int = 0
    """Position after the transaction under way."""
    serial: int = 0


class JoinerModel:
    """See the module."""

    def __init__(
        self,
        name: str,
        *,
        events: int = 5,
        closes_after_loss: bool = True,
        closes_after_abort: bool = True,
    ) -> None:
        self.name, self._events, self._closes_after_loss = name, events, closes_after_loss
        self._closes_after_abort = closes_after_abort

    def start(self, faults: int) -> State:
        """See Model."""
        return State(Broker(), frozenset(), faults)

    def broken(self, state: State) -> str:
        """See Model."""
        if state.todo or state.broker.ongoing:
            return ""
        got = [m.event for m in state.broker.log if m.status == "committed" and m.event >= 0]
        twice = sorted({event for event in got if got.count(event) > 1})
        lost = [event for event in range(self._events) if event not in got]
        if state.at == self._events and lost:
            return f"the examples of events {lost} are lost"
        return f"the examples of events {twice} are doubled" if twice else ""

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        """See Model."""
        for request in state.late:
            broker, _ = _handled(state.broker, request)
            arrived = state._replace(late=state.late - {request}, broker=broker)
            yield f"late {request.kind}: {request}", arrived
        if state.faults:
            less = state._replace(faults=state.faults - 1)
            yield "joiner dies", _restored(_taken_over(less))
            if state.broker.earlier:
                dead = _taken_over(less)
                yield "joiner dies, and reads old offsets", _restored(dead, state.broker.earlier)
        if state.todo:
            yield from self._requests(state)
        elif state.at < self._events or not state.sealed:
            yield from _begun(state, self._events)

    def _requests(self, state: State) -> Iterator[tuple[str, State]]:
        request = state.todo[0]._replace(epoch=state.epoch)
        broker, ok = _handled(state.broker, request)
        handled = state._replace(broker=broker)
        said = "" if ok else " refused"
        yield f"{request.kind}{said}: {request}", self._answered(handled, ok=ok)
        if not state.faults:
            return
        less = state._replace(faults=state.faults - 1, late=state.late | {request}, close_next=True)
        again = less._replace(broker=broker)
        yield f"{request.kind}{said}, a copy is late: {request}", self._answered(again, ok=ok)
        yield f"{request.kind} not answered: {request}", self._answered(less, ok=False)

    def _answered(self, state: State, *, ok: bool) -> State:
        if not ok:
            if not self._closes_after_abort and state.epoch == state.broker.epoch:
                broker, _ = _handled(state.broker, Request("end", state.epoch, commit=False))
                return _restored(state._replace(broker=broker))
            return _restored(_taken_over(state))
        if len(state.todo) > 1:
            return state._replace(todo=state.todo[1:])
        closed = state.close_next and self._closes_after_loss
        ended = state._replace(
            todo=(),
            at=state.after,
            name=state.serial,
            sealed=True,
            close_next=False,
            skip=tuple(event for event in state.skip if event >= state.after),
        )
        return _taken_over(ended) if closed else ended


def _handled(broker: Broker, request: Request) -> tuple[Broker, bool]:
    """Let the broker handle a request; return whether it accepts it."""
    if request.epoch != broker.epoch:
        return broker, False
    match request.kind:
        case "add partition":
            return broker._replace(ongoing=True, added=True), True
        case "add offsets":
            return broker._replace(ongoing=True, with_offsets=True), True
        case "produce":
            message = request.message
            assert message is not None
            # an epoch has each transaction once: a repeated message has a sequence number again
            if any(m[:2] == message[:2] for m in broker.log):
                return broker, True
            if not (broker.ongoing and broker.added):
                return broker, False
            return broker._replace(log=(*broker.log, message)), True
        case "offsets":
            ready = broker.ongoing and broker.with_offsets
            return (broker._replace(pending=request.position), True) if ready else (broker, False)
    if not broker.ongoing:
        return broker, broker.ended == request.commit
    return _ended(broker, commit=request.commit), True


def _ended(broker: Broker, *, commit: bool) -> Broker:
    status = "committed" if commit else "aborted"
    log = tuple(m._replace(status=status) if m.status == "open" else m for m in broker.log)
    committed, earlier = broker.committed, broker.earlier
    if commit and broker.pending is not None:
        committed, earlier = broker.pending, broker.committed
    return Broker(broker.epoch, ended=commit, log=log, committed=committed, earlier=earlier)


def _taken_over(state: State) -> State:
    """Connect a new producer: the broker raises the epoch, and aborts an open transaction."""
    broker = state.broker
    if broker.ongoing:
        broker = _ended(broker, commit=False)
    broker = broker._replace(epoch=broker.epoch + 1, ended=None)
    return state._replace(broker=broker, epoch=broker.epoch, close_next=False)


@lru_cache(None)
def _checkpoint(position: Position | None) -> SavedCheckpoint | None:
    if position is None:
        return None
    joined, name = position
    reading = InputPosition(joined, 0, 0, 0)
    saved = JoinerCheckpoint(0, 0, reading, reading, JoinerCounters())
    return SavedCheckpoint("", ("", ""), saved, batch=str(name))


def _restored(state: State, committed: Position | None = None) -> State:
    """Let the joiner go back to where the product says."""
    broker = state.broker
    messages = [m for m in broker.log if m.status == "committed"]
    whole = [place for place, m in enumerate(messages) if m.checkpoint is not None]
    tail = messages[whole[-1] if whole else 0 :]
    saved, ahead = last_position.continue_at(
        _checkpoint(committed or broker.committed), [_checkpoint(m.checkpoint) for m in tail]
    )
    behind = messages[-ahead:] if ahead else []
    return state._replace(
        at=0 if saved is None else saved.checkpoint.shown.position,
        name=0 if saved is None else int(saved.batch),
        skip=tuple(m.event for m in behind),
        until=_end_of(behind[-1]) if behind else 0,
        sealed=bool(whole),
        todo=(),
    )


def _end_of(message: Message) -> int:
    """Return where the transaction of a message would have ended; it notes that in each message."""
    return message.transaction % 100


def _begun(state: State, last: int) -> Iterator[tuple[str, State]]:
    """Begin a transaction: of one or two events, or the empty batch of a new partition."""
    least = max(state.at + 1, max(state.skip, default=0) + 1 if state.skip else 0)
    sizes = {min(size, last) for size in (state.at + 1, state.at + 2)}
    if state.skip:
        least = min(least, state.until)
        sizes |= {least}
    if not state.sealed:
        least, sizes = state.at, {state.at}
    for after in sorted(sizes):
        if after < least:
            continue  # it commits nothing before it has met what is ahead
        serial = (state.serial // 100 + 1) * 100 + after
        events = [e for e in range(state.at, after) if e not in state.skip]
        if not state.sealed:
            events = [NO_EVENT]
        position = after, serial if events else state.name
        messages = [
            Request(
                "produce",
                message=Message(event, serial, position if event == events[-1] else None),
            )
            for event in events
        ]
        offsets = [Request("add offsets"), Request("offsets", position=position)]
        for place in range(len(messages) + 1):
            todo = [*messages[:place], *offsets, *messages[place:], Request("end")]
            if messages:
                todo = [Request("add partition"), *todo]
            begun = state._replace(
                todo=tuple(todo), after=after, serial=serial if events else state.serial
            )
            yield f"begins: {events}, offsets at place {place}", begun
