"""Calibration after a model, learned online: `platt` has two numbers, `isotonic` many.

`shrinkage` mixes the model with the click rate.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
