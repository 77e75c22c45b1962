"""A seeded world in which the real learner loop, replica and keeper run against faults.

`kafka` is a topic of examples and a consumer group that rebalances; `network` is between a
process and the store and loses requests, loses replies, delays, and kills the caller; `world` puts
learners and keepers into it, breaks things as the seed says, then lets everything come to rest and
checks the promises. `python -m tests.simulation --seeds N` searches; a failing seed repeats.
"""
