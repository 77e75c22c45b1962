"""Scores a stream: impressions from one topic, their scores into another, each exactly once.

Read `loop` for the order of effects and the format of a score, and `scoring_process` for the
process around the loop, with its metrics.
"""
