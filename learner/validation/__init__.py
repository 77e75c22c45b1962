"""Measures accuracy from scores that were made before learning.

`progressive` has the five figures of a stream, `breakdown` the same by score, slice and time, and
`outcomes` joins scores with what happened.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
