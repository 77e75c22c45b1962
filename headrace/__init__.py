"""Streaming online learning for click-through-rate models.

As a service: `headrace demo`, `headrace run`, or the parts one by one (`headrace --help`). As a
library, without Kafka and Redis:

    import headrace

    model = headrace.LocalModel("news.toml")
    model.learn(impressions, clicks)  # iterables of events, or DataFrames
    model.predict([{"article": "a-1"}, {"article": "a-2"}], {"user": "u-1"})
    model.metrics()
    model.save("models/")

Everything public is listed here and loaded when it is first used.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
