from .shipped import path_of as path_of
from .shipped import specs_without_torch as specs_without_torch
