"""Reads logs, topics, rows and the server from outside, and compares models.

`report.py` makes the report of `headrace run`. `observer.py` follows a running pipeline for the
demo, and `model_comparison.py` compares a live and a frozen model. `ranking_client.py` asks a
server for rankings. `event_log.py` reads a log on disk. `tracking` has the records of runs.

`fit_report.py` sums up a fit, and `refusals.py` counts what a model refused.
"""
