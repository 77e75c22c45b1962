"""Measures accuracy from scores that were made before learning.

`progressive` has the five figures of a stream, `breakdown` the same by score, slice and time, and
`outcomes` joins scores with what happened.

`log_loss_sum` is the loss over data that is too large to keep, by one process or several.
"""
