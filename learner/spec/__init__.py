"""The model spec: parses `[model]`, `[statistics.*]`, `[optimizer]` and the whole file.

`load_spec` reads a file and `spec_schema` describes one. The other modules decide what two models
share: whether a process and a store mean the same model, whether one model may learn the examples
of another, and which rows a larger model can start with.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
