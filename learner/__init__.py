"""Examples in, gains out: models learned online, each example applied to each bucket once.

Read in this order: `spec` (the whole model spec), `statistics` (rows' counters as inputs), `ftrl`
and `logistic` (the mathematics, compiled), `loop` (the order of effects) with `intake` (batches
in), `cursors` (what still counts where), `pending` (gains not yet pushed) and `pushes` (those under
way), `progressive` (how good the scores were), `process` (the command).
"""
