"""Scores a stream: impressions from one topic, their scores into another, each exactly once.

Read `loop` for the order of effects, `message` for the format of a score, and `scoring_process` for
the process around them, with `scoring_metrics`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
