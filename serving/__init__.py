"""Answers requests from replicas of models that follow the parameter server.

`api` is what is said over HTTP, `models` what is scored by whom and under which alias, `replicas`
the rows and how fresh they are, `predictions` the log of what was served, `page` what an operator
looks at, `evaluation` the accuracy that users got; `process` holds a server together.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
