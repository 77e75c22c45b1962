"""Events: the contract with producers, and the JSON Schema that publishes it.

`contract` decides which messages are events and why others are refused; `json_schema` describes the
same rule for producers.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
