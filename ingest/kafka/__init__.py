"""Kafka as the rest of headrace uses it: readers, writers, transactions, topics, and their fakes.

`protocols` has what joiner, learner and scorer need; `consumer`, `producer` and `transactions` are
the real ones, `fakes` the lists of tests. `consumer_group` explains fencing and seeking, `retry`
the waiting, `error_translation` the errors. Other folders import these names from here and never
import a Kafka client.

`topics` has the names and settings of every topic, `settings` those of connections.
`transactional_ports` bundles the clients of a loop that works in transactions, and `offset_store`
keeps progress of groups that read nothing. `bounded_reader` reads up to an offset, `retention` how
long Kafka keeps what, `log_truncation` detects lost records, and `watchdog` ends a process whose
client hangs.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
