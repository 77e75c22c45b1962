"""Measures the constants of plans on this machine: `headrace calibrate`.

Read in this order: `trial_model` (what is joined, learned and scored), `event_timing` (joiner,
learner, server), `row_timing` (pushes, logs, keepers and the parameter server), `cost_measurement`
(all of them, and the file).
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
