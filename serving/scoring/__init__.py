"""Scoring a stream: impressions in one topic, their scores in another, each exactly once.

`message` is what a score says, `loop` the order of effects, `process` runs it.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
