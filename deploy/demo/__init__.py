"""Runs `headrace demo`: a model that learns a live stream, beside a copy that stopped learning.

Read `runner.py` first. `players.py` sends the events of the synthetic stream (`synthetic.py`, in
real time by `live_stream.py`). `schedule.py` has the moments of a demo, and `view.py` turns
figures into text.

`metrics.py` publishes the accuracy of a demo for the page.
"""
