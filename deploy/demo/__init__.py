"""Runs `headrace demo`: a model that learns a live stream, beside a copy that stopped learning.

Read `runner.py` first. It sends the events of the synthetic stream (`synthetic.py`, in real time by
`live_stream.py`). `view.py` turns figures into text, and into gauges for the page.
"""
