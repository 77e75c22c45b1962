"""A deployed model in the process that answers requests."""

from collections.abc import Callable
from contextlib import ExitStack

from headrace.serving.errors import ServingError
from headrace.serving.models.loading import ModelLoader, StoreModel, compatible_spec
from headrace.serving.models.registry import ModelRegistry


class RegisteredModel:
    """A model that this process loads for its registry. See `LoadedModel`."""

    def __init__(
        self,
        registry: ModelRegistry,
        loader: ModelLoader,
        opening: Callable[[str, ExitStack], StoreModel],
        name: str,
        spec: str,
    ) -> None:
        """Check a model, compile its kernels and start its rows.

        opening: opens the model of the text of a spec; the stack closes its store. Raises
        ServingError if the spec has another name, and the errors of opening.
        """
        self._registry, self._loader = registry, loader
        with ExitStack() as stack:
            model = opening(spec, stack)
            if model.spec.name != name:
                found = model.spec.name
                raise ServingError(f"model/{name}: expected a spec of {name}, got {found}")
            [(_, shape)] = compatible_spec([model])
            self._served = loader.load(model, shape)
            self.rows = self._served.rows
            self.rows.start()
            self._stack = stack.pop_all()

    def admit(self) -> None:
        """Let requests find the model."""
        self._registry.put(self._served)

    def withdraw(self) -> None:
        """Let requests no longer find it."""
        self._registry.remove(self._served.spec.name)

    def close(self) -> None:
        """Stop its thread and disconnect its store. Its rows go with the last request."""
        with self._stack:
            self.rows.stop()
            self._loader.forget(self._served.spec.name)
