"""HTTP as every server of headrace uses it: sockets, draining, tokens, metrics.

Start with `server`, which runs an application until it is stopped. `bounded_protocol` bounds each
connection, `bearer_tokens` checks who may send requests, `metrics_server` serves Prometheus,
`docs_page` shows the routes of an application, and `http_errors` has what they raise. The collector
and the prediction servers share this folder; each has its own application.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
