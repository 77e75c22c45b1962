"""The model spec: parses `[model]`, `[statistics.*]`, `[optimizer]` and the whole file.

`load_spec` of `model_spec` reads a file, and `schema` describes one for editors. Each section has a
module: `architecture`, `optimizer_spec`, `statistics_spec`, `calibration_spec`,
`admission_and_expiry`. `compatibility` decides whether a process and a store mean the same model,
and whether one model may learn the examples of another. `warm_start` selects the rows that a larger
model can start with.
"""
