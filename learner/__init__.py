"""Examples in, deltas out: models learned online, each example applied to each bucket exactly once.

Read in this order: `spec` (the model spec), `inputs` (the inputs of an example), `kernels` (steps
on rows), `models` (what learns), `loop` (the order of effects, from Kafka to pushes), `calibration`
and `validation` (the quality of scores), `recovery` (restore and rebuild), `process` (the command)
with `metrics`.

Other ways to learn: `batch` learns from files, `local` in one process for notebooks, and
`experiments` compares many models on the same examples. `suggestion` writes a first spec for a log.
`intrinsics` holds vector instructions for kernels.
"""
