"""Finds the models of a server by name, alias or snapshot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from headrace.ingest.http import RequestRefused
from headrace.serving.models.aliases import SHADOW
from headrace.serving.models.traffic_split import TrafficSplit, split_of

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
    split: TrafficSplit | None = None
    """The split of the alias; None: it has one model. `served` is the model with the largest weight
    until `ModelRegistry.arm` has chosen one for the request."""


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
        served = self._served.get(alias.model)
        if served is not None:
            return Route(served, name)
        split = split_of(alias.model)
        assert split is not None  # Aliases checked that the models are here
        return Route(self._served[split.models[0]], name, split)

    def arms(self, target: Route) -> list[ServedModel]:
        """Return the models that may answer requests to `target`."""
        names = () if target.split is None else target.split.models
        return [self._served[each] for each in names] or [target.served]

    def arm(self, target: Route, key: bytes) -> Route:
        """Return `target` with the model that its split chooses for the value of its key.

        While that model is incomplete, the split of the complete ones chooses.
        """
        split = target.split
        if split is None:
            return target
        chosen = self._served[split.choose(key)]
        if not chosen.rows.standing.complete:
            complete = tuple(
                each for each in split.weights if self._served[each[0]].rows.standing.complete
            )
            if complete:
                chosen = self._served[TrafficSplit(complete, split.key).choose(key)]
        return target._replace(served=chosen)

    def shadows(self, target: Route) -> list[Route]:
        """Return the shadow models of `target`: empty unless it was requested by an alias."""
        if not target.alias or target.alias.startswith(SHADOW):
            return []
        return [
            Route(self._served[each.model], name)
            for name, each in self.aliases.table.items()
            if name.startswith(SHADOW) and each.model != target.served.spec.name
        ]
