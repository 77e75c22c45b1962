"""Explores every order of events of small protocols: `python -m tests.exploration [--faults N]`.

`search` walks breadth first through all states of a model. `models` lists the models: `store_model`
on `store_state` (learners, a store, keepers and a reader) and `reshard_model` (reshards and
removals of old buckets). The rules under test are the product's own functions, wherever these are
pure. `test_exploration` runs the short explorations, and removes each rule in turn.

The simulation draws long runs of the real processes, with joiners, late requests and parked
messages, too. These models are exhaustive, but small.
"""
