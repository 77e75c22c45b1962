"""Finds the models of a server by name, alias or snapshot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from headrace.ingest.http import RequestRefused
from headrace.serving.models.aliases import SHADOW

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from headrace.learner.spec import ModelSpec
    from headrace.serving.models.aliases import Aliases
    from headrace.serving.models.predictor import Predictor
    from headrace.serving.replicas import LocalRows
    from headrace.serving.requests import RequestDecoder


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model with its decoder, predictor and rows."""

    spec: ModelSpec
    decoder: RequestDecoder
    predictor: Predictor
    rows: LocalRows
    costly: bool = False
    """Whether every request is computed on a thread beside the event loop, even a small one."""
    spare: Predictor | None = None
    """A second predictor for the shadows' thread, if the first is not safe for two threads."""


class Route(NamedTuple):
    """The model that answers a request, and the alias that the request named."""

    served: ServedModel
    alias: str
    """Empty if the request named the model itself."""


class ModelRegistry:
    """All models of a server."""

    def __init__(self, served: Iterable[ServedModel], aliases: Aliases) -> None:
        self._served = {each.spec.name: each for each in served}
        self.aliases = aliases

    def __iter__(self) -> Iterator[ServedModel]:
        return iter(self._served.values())

    def __contains__(self, name: object) -> bool:
        return name in self._served

    def names(self) -> list[str]:
        """Return the names of the models, sorted."""
        return sorted(self._served)

    def find(self, name: str) -> Route:
        """Return the model of this name, alias or snapshot. Raises RequestRefused (404)."""
        served = self._served.get(name)
        if served is not None:
            return Route(served, "")
        alias = self.aliases.table.get(name)
        if alias is None:
            for each in self:
                if each.rows.standing.snapshot == name:
                    return Route(each, "")
            known = ", ".join([*self.names(), *sorted(self.aliases.table)])
            raise RequestRefused(404, "model", f"one of the models and aliases here: {known}", name)
        return Route(self._served[alias.model], name)

    def shadows(self, target: Route) -> list[Route]:
        """Return the shadow models of `target`: empty unless it was requested by an alias."""
        if not target.alias or target.alias.startswith(SHADOW):
            return []
        return [
            Route(self._served[each.model], name)
            for name, each in self.aliases.table.items()
            if name.startswith(SHADOW) and each.model != target.served.spec.name
        ]
