"""`headrace serving`: serves predictions, switches aliases, and deploys models.

`serving_commands` has the group and the server; `serving_score`, `serving_relay`, `serving_aliases`
and `serving_deployments` add their commands to it.
"""
