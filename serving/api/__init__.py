"""HTTP routes of a prediction server.

`app` assembles the routes, and `handler` answers a prediction request in five numbered steps.
`load_shedding` decides whether a request gets in, and `responses` has the bodies of answers.
`fast_path` runs the handler without ASGI. `health`, `admin` and `openapi` serve status, aliases and
documentation.

`fast_path_probe` tests the fast path at each start, and `request_metrics` counts.
"""
