"""A server of several processes that share one copy of the rows.

`worker_supervisor` starts a `follower_process`, which follows the logs, and `worker_process`es,
which answer requests; `process_pool` restarts those that die. The rows are in files of shared
memory (`shared_memory`). The follower publishes their status and file through a `mailbox`
(`row_publisher`), from which workers map them (`row_subscriber`). `shared_aliases` uses a mailbox
for the aliases.
"""
