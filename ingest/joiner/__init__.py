"""The joiner: reads impressions and clicks from Kafka and writes labelled examples back.

`core` is pure: it pairs impressions with clicks and knows no Kafka. `partition` adds offsets and
checkpoints to one core, `loop` drives all partitions in transactions, and `joiner_process` adds
clients, clock and metrics. `committed_state` reads the progress of a joiner from any process.

`last_position` finds where a restarted joiner continues, and `written_examples` leaves out what is
in the topic already. `partition_growth` adds partitions to running models, and `joiner_metrics`
counts. `event_coverage` counts which declared fields have values.
"""
