"""A simulated world in which the real learner, replica and keeper run against faults from a seed.

`kafka` has a topic of examples and a consumer group that rebalances. `network` is between a process
and the store: it loses requests and replies, delays them, and kills the caller. `world` runs
learners and keepers in it, injects the faults of the seed, then lets everything settle and checks
the promises. `python -m tests.simulation --seeds N` searches; a seed that fails once fails again.
"""
