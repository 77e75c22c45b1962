"""Deep models: torch networks over rows, learned mini-batch by mini-batch.

Read `contract` (what a network is), `deep_model` (one mini-batch from rows to gradients and back),
`kernels` and `gradient_kernels`, `layers` (parameters as rows), `networks`, and for groups of
learners `synchronous_layers` with `process_group`. `user_module` loads a user's own network.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
