"""Calibration after a model, learned online: `platt` has two numbers, `isotonic` many.

`shrinkage` mixes the model with the click rate.
"""
