"""Opens the model that a spec declares, and imports nothing of the others."""

from contextlib import AbstractContextManager, nullcontext

from headrace.learner.errors import MissingTorch
from headrace.learner.models.row_model import RowModel
from headrace.learner.spec.architecture import DEEP, FACTORIZATION_MACHINE, LOGISTIC_REGRESSION
from headrace.learner.spec.model_spec import ModelSpec
from headrace.learner.spec.optimizer_spec import FTRL


def open_model(spec: ModelSpec, buckets: int = 0) -> RowModel:
    """Return the model that the spec declares.

    buckets: of its store; required if the spec has an admission. Raises ValueError if it is missing
    then, UnfitModule if a user's module cannot be used, MissingTorch if torch is not installed.
    """
    linear = spec.architecture == LOGISTIC_REGRESSION
    if linear and spec.optimizer.name == FTRL and not spec.fields.learns_item_weights:
        from headrace.learner.models.logistic import LogisticRegression

        return LogisticRegression(spec, buckets)
    if spec.architecture in (LOGISTIC_REGRESSION, FACTORIZATION_MACHINE):
        # without dimensions a factorization machine is a logistic regression, of any optimizer,
        # which can also learn the weights of items
        from headrace.learner.models.factorization_machine import FactorizationMachine

        return FactorizationMachine(spec, buckets)
    try:
        from headrace.learner.models.deep.deep_model import DeepModel
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise MissingTorch(spec.architecture) from error
    return DeepModel(spec, buckets)


def layer_threads(spec: ModelSpec, cores: int) -> AbstractContextManager[None]:
    """Return a context in which layers of deep models are computed for so many cores."""
    if spec.architecture not in DEEP:
        return nullcontext()
    from headrace.learner.models.deep.passes import layer_threads as threads_of_layers

    return threads_of_layers(spec, cores)
