"""The state of servers, buckets and models, for operators.

Read in this order: `nodes` (servers), `buckets` (counts and sizes), `model_survey` (both together),
`usage` (whether processes use a model). Nothing here judges: `deploy.operations` does.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
