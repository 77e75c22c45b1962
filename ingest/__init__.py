"""Events in, labelled examples out: from what producers write to what learners read.

Read in this order: `events` (the contract with producers), `fields` (the model spec's half that
joiner, learner and server must agree on), `encode` (fields to 64-bit ids), `join` (the pure core
that pairs impressions with clicks), `examples` (the columnar batches it writes), `stream` and
`kafka` (where records come from and go to), `joiner` (the process), `replay` (files into Kafka).
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
