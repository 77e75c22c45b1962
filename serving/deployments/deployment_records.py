"""The records of the topic `deployments`, and the state that they add up to.

    model/news-2         {"spec": "[model]\nname = \"news-2\"\n..."}
    alias/production     {"target": "news=95 news-2=5"}

The topic is compacted and has one partition, so every server reads the same records in the same
order, and the last record of a key is its state. An empty value removes the key.

A record of a model has the whole spec, so a server needs no file that the others have. Specs and
aliases share the topic because their order matters: the spec of a model comes before the alias that
points at it. One transaction may change several of them.

*Refused:* loading the models that aliases name, without records of their own. A new model could not
copy its rows before an alias pointed at it. *Refused:* a change over HTTP on each server. A server
that was down at that moment, or starts later, would miss it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import msgspec

from headrace.runtime.undecodable import UNDECODABLE

log = logging.getLogger(__name__)

_MODEL, _ALIAS = "model", "alias"
REMOVED = b""
"""The value that removes a key."""


class ModelRecord(msgspec.Struct, frozen=True):
    """Value of `model/NAME`."""

    spec: str
    """The whole text of the model spec."""


class AliasRecord(msgspec.Struct, frozen=True):
    """Value of `alias/NAME`."""

    target: str
    """A model, or models with weights."""


class DeploymentChange(NamedTuple):
    """A message of the topic."""

    key: bytes
    value: bytes


def model_change(name: str, spec: str | None) -> DeploymentChange:
    """Return the record that deploys a model with this spec; None removes it."""
    value = REMOVED if spec is None else msgspec.json.encode(ModelRecord(spec))
    return DeploymentChange(f"{_MODEL}/{name}".encode(), value)


def alias_change(name: str, target: str | None) -> DeploymentChange:
    """Return the record that points an alias at a model or a split; None removes it."""
    value = REMOVED if target is None else msgspec.json.encode(AliasRecord(target))
    return DeploymentChange(f"{_ALIAS}/{name}".encode(), value)


@dataclass(frozen=True, slots=True)
class Deployments:
    """The state of the topic. Immutable."""

    models: Mapping[str, str] = field(default_factory=dict)
    """Name -> text of the spec."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Alias -> model or split."""

    def after(self, key: bytes | None, value: bytes | None) -> Deployments:
        """Return the state after one more message.

        An unreadable record is logged and changes nothing. Kinds of later versions are ignored.
        """
        kind, _, name = (key or b"").decode("utf-8", "replace").partition("/")
        try:
            if kind == _MODEL:
                spec = msgspec.json.decode(value, type=ModelRecord).spec if value else None
                return replace(self, models=_with(self.models, name, spec))
            if kind == _ALIAS:
                target = msgspec.json.decode(value, type=AliasRecord).target if value else None
                return replace(self, aliases=_with(self.aliases, name, target))
        except UNDECODABLE as error:
            log.warning("ignored a record of the topic deployments, key %r: %s", key, error)
        return self


def _with(entries: Mapping[str, str], name: str, value: str | None) -> dict[str, str]:
    kept = {key: each for key, each in entries.items() if key != name}
    return kept if value is None else {**kept, name: value}
