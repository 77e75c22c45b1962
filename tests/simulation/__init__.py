"""A simulated world in which the real joiner, learner, replica and keeper run against faults.

`pipeline` has a producer of events, their topics and the joiners, and `topic` the examples that
joiners write and learners read. `producer_client` is the client on which the product's transactions
run, and `broker` the coordinator and the logs behind it. `kafka` has consumer groups that
rebalance. `network` is between a process and the store: it loses requests and replies, delays them,
and kills the caller. `world` runs the processes, injects the faults of the seed, then lets
everything settle and checks the promises. `parking` has a guard that parks at random, and
operators. `kinds` narrows a world to one race. `mutants` lists the checks whose removal the
simulation must notice, and `mutant_seeds` finds the seeds that do.
`python -m tests.simulation --seeds N` searches; a seed that fails once fails again.
"""
