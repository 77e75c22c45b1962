"""The models of a server by name, and the names that stand for them."""

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
    """A model with all that answers for it."""

    spec: ModelSpec
    decoder: RequestDecoder
    predictor: Predictor
    rows: LocalRows
    costly: bool = False
    """Whether it is computed on a thread beside the event loop, however small the request."""
    spare: Predictor | None = None
    """For the shadows' thread, where a model's memory is not to be shared with another thread."""


class Route(NamedTuple):
    """Whom a request is for."""

    served: ServedModel
    alias: str
    """As the request named it; empty if it named the model itself."""


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
        """Return the model of this name or alias, or the snapshot. Raises RequestRefused (404)."""
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
        """Return who scores beside `target`: the shadows' models, if it was named by an alias."""
        if not target.alias or target.alias.startswith(SHADOW):
            return []
        return [
            Route(self._served[each.model], name)
            for name, each in self.aliases.table.items()
            if name.startswith(SHADOW) and each.model != target.served.spec.name
        ]
