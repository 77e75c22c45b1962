"""Kafka as the rest of headrace uses it: readers, writers, transactions, topics, and their fakes.

`protocols` has what joiner, learner and scorer need; `consumer`, `producer` and `transactions` are
the real ones, `fakes` the lists of tests. `consumer_group` explains fencing and seeking, `retry`
the waiting, `error_translation` the errors. Other folders import these names from here and never
import a Kafka client.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
