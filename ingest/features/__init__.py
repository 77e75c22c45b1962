"""Features: the fields of a model, and the encoder that turns events into ids and numbers.

`fields` parses the part of the model spec that joiner, learner and server must agree on, and
`label_policy` says when an impression becomes an example. `encoder` applies the fields to events,
with the hashes of `hashing`. `weights` decides how much an example counts.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
