"""The messages of a group of runners, in the first partition of its topic.

Each message has the id of the run and the path of its sender: a digest of all orders up to a step.
A message of another path is of no meaning, and is dropped. Sums are binary floats, and so exact.
"""

from __future__ import annotations

import hashlib
from typing import Literal

import msgspec

from headrace.undecodable import UNDECODABLE

FIRST_PATH = b""


class Order(msgspec.Struct, frozen=True, tag="order", array_like=True):
    """Proposes the next step: a batch of one partition of the examples."""

    run: str
    path: bytes
    """Before the step."""
    step: int
    """From 1."""
    partition: int
    new_arms: bool
    """Whether arms may begin after the step."""

    @property
    def after(self) -> bytes:
        """Return the path behind the step."""
        text = f"{self.step} {self.partition} {self.new_arms}".encode()
        return hashlib.blake2b(self.path + text, digest_size=8).digest()


class Action(msgspec.Struct, frozen=True, tag="action", array_like=True):
    """Proposes an action of all runners after a step, before the next one."""

    run: str
    path: bytes
    step: int
    kind: Literal["begin", "save", "stop", "done"]
    """begin (of the run), save, stop (the log ends here), done (the result is saved)."""
    new_arms: bool = True
    """Of begin: whether arms may begin."""


class Sums(msgspec.Struct, frozen=True, tag="sums", array_like=True):
    """Summed losses of the arms of one runner, over the blocks whose outcomes a step settled."""

    run: str
    path: bytes
    step: int
    arms: dict[int, list[float]]
    at_end: bool = False
    """Whether these are the outcomes that remain at the end of the log."""


class Saved(msgspec.Struct, frozen=True, tag="saved", array_like=True):
    """The models of these arms are saved at a step."""

    run: str
    path: bytes
    step: int
    arms: list[int]


Message = Order | Action | Sums | Saved
_decoder = msgspec.msgpack.Decoder(Message)


def encoded_message(message: Message) -> bytes:
    """Return a message as bytes."""
    return msgspec.msgpack.encode(message)


def decoded_message(value: bytes) -> Message | None:
    """Return a message; None for bytes of another form."""
    try:
        found: Message = _decoder.decode(value)
    except UNDECODABLE:
        return None
    return found
