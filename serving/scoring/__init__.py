"""Scores a stream: impressions from one topic, their scores into another, each exactly once.

Read `loop` for the order of effects, `message` for the format of a score, and `scoring_process` for
the process around them, with its metrics.
"""
