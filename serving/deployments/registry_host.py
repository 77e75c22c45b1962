"""Loads and unloads models in the process that answers requests."""

from contextlib import ExitStack
from typing import NamedTuple, Protocol

from headrace.serving.errors import ServingError
from headrace.serving.models.loading import ModelLoader, StoreModel, compatible_spec
from headrace.serving.models.registry import ModelRegistry, ServedModel
from headrace.serving.replicas.status import LocalRows


class OpenModel(Protocol):
    """Opens the model of the text of a spec."""

    def __call__(self, spec: str, stack: ExitStack, /) -> StoreModel:
        """Return the model. The stack closes its store."""


def opened_model(opening: OpenModel, name: str, spec: str, stack: ExitStack) -> StoreModel:
    """Return a deployed model. Raises ServingError if its spec has another name."""
    model = opening(spec, stack)
    if model.spec.name != name:
        raise ServingError(f"model/{name}: expected a spec of {name}, got {model.spec.name}")
    return model


class RegisteredModel(NamedTuple):
    """A model of this process."""

    served: ServedModel
    stack: ExitStack
    """Closes its store."""

    @property
    def rows(self) -> LocalRows:
        """The rows."""
        return self.served.rows


class RegistryHost:
    """Loads models for the registry of this process. See `ModelHost`."""

    def __init__(self, registry: ModelRegistry, loader: ModelLoader, opening: OpenModel) -> None:
        self._registry, self._loader, self._opening = registry, loader, opening

    def open(self, name: str, spec: str) -> RegisteredModel:
        """Check a model, compile its kernels and start its rows."""
        with ExitStack() as stack:
            model = opened_model(self._opening, name, spec, stack)
            [(_, shape)] = compatible_spec([model])
            served = self._loader.load(model, shape)
            served.rows.start()
            return RegisteredModel(served, stack.pop_all())

    def admit(self, name: str, opened: RegisteredModel) -> None:  # noqa: ARG002 - the interface
        """Let requests find a complete model."""
        self._registry.put(opened.served)

    def withdraw(self, name: str) -> None:
        """Let requests no longer find it."""
        self._registry.remove(name)

    def close(self, name: str, opened: RegisteredModel) -> None:
        """Stop its thread and disconnect its store. Its rows go with the last request."""
        with opened.stack:
            opened.served.rows.stop()
            self._loader.forget(name)
