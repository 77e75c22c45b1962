"""Examples in, gains out: models learned online, each example applied to each bucket once.

Read in this order: `spec` (the whole model spec), `inputs` (what an example is to a model),
`statistics` (rows' counters as inputs), `ftrl` and `logistic` (the mathematics, compiled), `models`
(what a model is, and the others), `optimizers` (steps that add), `loop` (the order of effects) with
`intake` (batches in), `cursors` (what still counts where), `pending` (gains not yet pushed) and
`pushes` (those under way), `progressive` (how good the scores were), `process` (the command).
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
