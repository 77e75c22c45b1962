from .deep_model import DeepModel as DeepModel
from .networks import NetworkBatch as NetworkBatch
from .networks import NetworkShape as NetworkShape
from .networks import hidden_layers as hidden_layers
from .passes import layer_threads as layer_threads
from .process_group import GroupConfig as GroupConfig
from .process_group import join_group as join_group
