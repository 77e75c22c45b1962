from .factory import open_model as open_model
from .protocols import Model as Model
from .protocols import TrainableModel as TrainableModel
from .sync_group import MiniBatchEvidence as MiniBatchEvidence
from .sync_group import Quarantined as Quarantined
from .sync_group import SoloGroup as SoloGroup
from .sync_group import SyncGroup as SyncGroup
