"""Scoring a stream: impressions in one topic, their scores in another, each exactly once.

`message` is what a score says, `loop` the order of effects, `process` runs it.
"""
