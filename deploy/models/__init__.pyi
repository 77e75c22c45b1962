from .shipped import path_of as path_of
