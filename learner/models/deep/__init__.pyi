from .deep_model import DeepModel as DeepModel
from .process_group import GroupConfig as GroupConfig
from .process_group import join_group as join_group
