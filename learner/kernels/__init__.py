"""Compiled parts that every model shares: finding rows, reading them, stepping and counting them.

Read `row_ids` (the bits of an id), `row_lookup` (where the rows of a block of inputs are),
`row_values` (what a row is worth) with `initialization` (what it is worth at first), `optimizers`
with `ftrl` (steps that only add), `loss`, `row_counters`, and `pending_deltas` (what a learner's
rows gained since the last push).
"""
