"""`headrace pserver`: creates, inspects, keeps, snapshots and restores a model's rows.

`pserver_commands` has the group and the processes; `pserver_snapshots`, `pserver_restore` and
`pserver_reshard` add the commands that copy rows, and `pserver_limit` the limit on rows.
"""
