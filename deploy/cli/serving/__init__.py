"""`headrace serving`: serves predictions, switches aliases, and deploys models.

`serving_commands` has the server, and `serving_aliases` the commands for running servers.
`serving_score` and `serving_relay` have those of further processes.
"""
