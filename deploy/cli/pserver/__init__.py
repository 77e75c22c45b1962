"""`headrace pserver`: creates, inspects, keeps, snapshots and restores a model's rows.

`pserver_snapshots`, `pserver_restore` and `pserver_reshard` have the commands that copy rows, and
`pserver_commands` the others.
"""
