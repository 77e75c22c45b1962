"""Dead letters: refused events and quarantined batches, with the reason, and their repair.

The joiner and the scorer refuse single events; a learner quarantines batches of examples.

`letter` is the format, `reader` finds the open letters, `repairs` reads corrections from a file or
a function, and `letter_retry` sends repaired events back, each exactly once.
"""
