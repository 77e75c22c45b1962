"""Deep models: torch networks over rows, learned mini-batch by mini-batch.

Read `networks` (what a network is, and those of papers), `deep_model` (one mini-batch from rows to
gradients and back), `kernels` and `gradient_kernels`, `batch_tensors` (arrays for torch), `passes`
(forward and backward), and `layers` with `layer_kernels` (parameters as rows). `device_module` runs
a network on a device.

Two things sum gradients over processes (`process_group`): `synchronous_layers` for several learners
that step together, `device_group` for the devices of one learner.

Threads of torch's OpenMP wait without spinning here, unless OMP_WAIT_POLICY says otherwise.
Spinning threads take the cores from the threads that read and encode. To compare, run
`python -m tests.bench.fit --quick` with and without OMP_WAIT_POLICY=ACTIVE, beside other work.
"""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # read once, when torch is loaded

from headrace.learner.models.deep.networks.contract import (
    NetworkBatch,
    NetworkShape,
    hidden_layers,
)

__all__ = ["NetworkBatch", "NetworkShape", "hidden_layers"]
