"""Deep models: torch networks over rows, learned mini-batch by mini-batch.

Read `contract` (what a network is), `deep_model` (one mini-batch from rows to gradients and back),
`kernels` and `gradient_kernels`, `passes` (forward and backward), `layers` (parameters as rows),
`networks`, and for groups of learners `synchronous_layers` with `process_group`. `user_module`
loads a user's own network.

Threads of torch's OpenMP wait without spinning here, unless OMP_WAIT_POLICY says otherwise.
Spinning threads take the cores of those that read and encode: measured on two cores with other
work, a fit of a DeepFM with two threads had 8,000 to 15,000 rows/s with it, 42,000 to 58,000
without.
"""

import os

import lazy_loader

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # read once, when torch is loaded

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
