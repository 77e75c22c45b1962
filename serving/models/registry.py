"""Finds the models of a server by name, alias or snapshot."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from headrace.learner.spec.model_spec import ModelSpec
from headrace.runtime.http.http_errors import RequestRefused
from headrace.serving.models.aliases import SHADOW, Aliases
from headrace.serving.models.predictor import Predictor
from headrace.serving.models.traffic_split import TrafficSplit, split_of
from headrace.serving.replicas.status import LocalRows
from headrace.serving.requests.request_decoder import RequestDecoder


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
    """All models of a server.

    Models come and go while it runs. Each change replaces the table of models, so a request sees
    the state before or after it. With several processes, an alias may name a model for a moment
    before this process has loaded it. Its previous models answer meanwhile.
    """

    def __init__(self, served: Iterable[ServedModel], aliases: Aliases) -> None:
        self._served = {each.spec.name: each for each in served}
        self.aliases = aliases

    def __iter__(self) -> Iterator[ServedModel]:
        return iter(self._served.values())

    def names(self) -> list[str]:
        """Return the names of the models, sorted."""
        return sorted(self._served)

    def find(self, name: str) -> Route:
        """Return the model of this name, alias or snapshot. Raises RequestRefused (404)."""
        served = self._served.get(name)
        if served is not None:
            return Route(served, "")
        alias = self.aliases.table.get(name)
        if alias is not None:
            target = self._pointed(name, alias.model) or self._pointed(name, alias.previous)
            if target is None:
                found = f"{alias.model}, which is not loaded yet"
                raise RequestRefused(503, "model", "a loaded model", found)
            return target
        for each in self:
            if each.rows.status.snapshot == name:
                return Route(each, "")
        known = ", ".join([*self.names(), *sorted(self.aliases.table)])
        raise RequestRefused(404, "model", f"one of the models and aliases here: {known}", name)

    def put(self, model: ServedModel) -> None:
        """Serve one more model."""
        self._served = {**self._served, model.spec.name: model}

    def remove(self, name: str) -> None:
        """Serve a model no longer. Requests that have found it are answered."""
        self._served = {key: each for key, each in self._served.items() if key != name}

    def _pointed(self, alias: str, target: str) -> Route | None:
        """Return the route of an alias to its target; None: no model of it is here."""
        here = self._served
        served = here.get(target)
        if served is not None:
            return Route(served, alias)
        split = split_of(target) if target else None
        for name in () if split is None else split.models:
            if name in here:
                return Route(here[name], alias, split)
        return None

    def arms(self, target: Route) -> list[ServedModel]:
        """Return the models that may answer requests to `target`."""
        names, here = () if target.split is None else target.split.models, self._served
        return [here[each] for each in names if each in here] or [target.served]

    def arm(self, target: Route, key: bytes) -> Route:
        """Return `target` with the model that its split chooses for the value of its key.

        While that model is missing or incomplete, the split of the complete ones chooses.
        """
        split, here = target.split, self._served
        if split is None:
            return target
        chosen = here.get(split.choose(key))
        if chosen is None or not chosen.rows.status.complete:
            complete = tuple(
                (name, weight)
                for name, weight in split.weights
                if name in here and here[name].rows.status.complete
            )
            if complete:
                chosen = here[TrafficSplit(complete, split.key).choose(key)]
        return target if chosen is None else target._replace(served=chosen)

    def shadows(self, target: Route) -> list[Route]:
        """Return the shadow models of `target`: empty unless it was requested by an alias."""
        if not target.alias or target.alias.startswith(SHADOW):
            return []
        here = self._served
        return [
            Route(here[each.model], name)
            for name, each in self.aliases.table.items()
            if name.startswith(SHADOW)
            and each.model != target.served.spec.name
            and each.model in here
        ]
