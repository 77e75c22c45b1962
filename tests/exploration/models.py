"""Lists the models, and the faults with which each is explored in a few seconds."""

from typing import Any

from tests.exploration.reshard_model import ReshardModel
from tests.exploration.search import Model
from tests.exploration.store_model import StoreModel

MODELS: tuple[Model[Any], ...] = (
    StoreModel("pushes", buckets=2, keepers=0),
    StoreModel("keepers", buckets=1, keepers=2),
    ReshardModel(),
)
