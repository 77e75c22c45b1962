from .factory import open_model as open_model
from .protocols import Model as Model
from .protocols import TrainableModel as TrainableModel
from .sync_group import SyncGroup as SyncGroup
