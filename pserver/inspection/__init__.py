"""The state of servers, buckets and models, for operators.

Read in this order: `nodes` (servers), `buckets` (counts and sizes), `model_survey` (both together),
`usage` (whether processes use a model). Nothing here judges: `deploy.operations` does.
"""
