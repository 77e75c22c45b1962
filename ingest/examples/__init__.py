"""Labelled examples: what the joiner writes and learners read.

`batch` has the columns of a batch and its message format. `arrow_batch` validates the bytes, and
`damaged_messages` skips what an operator named. `continuity` finds missing batches. `splitting`
divides batches.
"""
