"""The models of a server, and what a request is to them.

`candidates` is what is to be scored, `predictor` scores it, `together` scores several requests at
once, `served` is a model with all that answers for it, `aliases` are the names that requests should
use, `shadows` score beside the answer.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
