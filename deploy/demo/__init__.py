"""Runs `headrace demo`: a model that learns a live stream, beside a copy that stopped learning.

Read `runner.py` first. `players.py` sends the events: the synthetic stream (`synthetic.py`, in real
time by `live_stream.py`) or a log. `schedule.py` has the moments of a demo, and `view.py` turns
figures into text.

`experiment.py` runs the arms of a demo, and `metrics.py` publishes its accuracy for the page.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
