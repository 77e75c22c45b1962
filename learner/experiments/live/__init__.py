"""Experiments on a topic of examples, which has no end.

A live runner is the runner over files with another source (`topic_source`). It reads the topic from
the first retained example, so its arms catch up on hours of stream in seconds, and then reads on.
The order of partitions is a function of the log and of the published places of late batches
(`published_order`), so a runner that reads the log again decides the same.

The state stays in a folder, as over files. After each save, and never before, the runner publishes
the records that belong to the saved state to the compacted topic `experiments` (`history_topic`). A
runner that was killed therefore never contradicts a published decision. A runner that lost its
folder replays the log from the offsets in the first published record, and compares each record
that it makes again. *Refused:* publishing each record at once. A killed runner would repeat the
steps since its last save, and if a partition was delayed, their order could differ from what is
published.

`live_run` is the runner and `live_process` the process around it. `saved_arm` reads the rows of an
arm for its promotion.
"""
