"""Lists the models, and the faults with which each is explored in a few seconds."""

from typing import Any

from tests.exploration.joiner_model import JoinerModel
from tests.exploration.parked_model import ParkedModel
from tests.exploration.reshard_model import ReshardModel
from tests.exploration.search import Model
from tests.exploration.store_model import StoreModel

MODELS: tuple[Model[Any], ...] = (
    JoinerModel("joiner"),
    # the joiner's position must hold by itself, should a lost connection go unnoticed
    JoinerModel("joiner that keeps its producer", closes_after_loss=False),
    StoreModel("pushes", buckets=2, keepers=0),
    StoreModel("keepers", buckets=1, keepers=2),
    ParkedModel("parked messages", messages=1),
    ReshardModel(),
)
