"""Reads Kafka: with a consumer that follows its partitions, and up to an offset.

`consumer` is the reader of a process that goes on; `consumer_group` explains how it joins its
group, fencing and seeking. `bounded_reader` reads up to an offset. `offset_store` keeps the
progress of groups that read nothing, `log_truncation` detects lost records, and `record_fetcher`
reads single messages again. `log_bounds` asks for offsets of logs beside a reader, and
`read_lag` counts the records that it has not read. `source_order` decides how far in event time the
partitions may be taken.
"""
