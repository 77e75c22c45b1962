"""Networks of deep models, as torch modules that know neither rows nor learners.

`contract` defines what a network takes and returns. `architectures` has the networks of papers, of
which those over histories are in `sequence`, and `pairwise` sums products of pairs. `user_module`
loads a network of the user, and tests it before it learns anything.
"""
