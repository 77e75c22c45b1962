"""Restores a model from a snapshot, or rebuilds it as of a past moment.

`restore` puts a snapshot into a store; `rebuilder` replays examples onto a snapshot, in memory.
"""
