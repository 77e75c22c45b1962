"""The benchmark of the batch guard: good streams, streams with a fault, and what they cost.

Read `__main__` (the figures) first. Then `guard_streams` (streams of labelled examples), `arrivals`
(how they are cut into messages), `good_streams` (what is parked of good examples), `faults` (what a
producer may do wrong), and `harm` (a learner of one stream with a fault).
"""
