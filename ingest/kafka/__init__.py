"""Kafka as the rest of headrace uses it: readers, writers, transactions, topics, and their fakes.

`protocols` has what joiner, learner and scorer need; `reading`, `producer` and `transactions` are
the real ones, `fakes` the lists of tests. `transactional_ports` bundles the clients of a loop that
works in transactions, and opens them. Other folders never import a Kafka client.

`topics` has the names and settings of every topic, `settings` those of connections. `retry` has the
waiting, `error_translation` the errors, `advertised_brokers` the check of addresses, `client_log`
the log lines of the client and what they tell, and `watchdog` ends a process whose client hangs.
"""
