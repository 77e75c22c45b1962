"""A model without Kafka, Redis or a server: for notebooks, scripts and tests.

`event_input` turns iterables and DataFrames into messages as a producer would send them;
`local_model` sends them through the joiner's rules, the encoder and the model of the service.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
