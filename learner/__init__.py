"""Examples in, gains out: models learned online, each example applied to each bucket once.

Read in this order: `spec` (the whole model spec), `statistics` (rows' counters as inputs), `ftrl`
and `logistic` (the mathematics, compiled), `pending` (what was gained and not yet acknowledged),
`loop` (the order of effects), `progressive` (how good the scores were), `process` (the command).
"""
