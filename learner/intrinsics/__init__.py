"""Vector instructions for kernels: eight floats at once, and neighbouring numbers of a row."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
