"""Models that servers load, switch to and unload while they run.

`deployment_records` are the records of the topic `deployments`: model specs and aliases.
`deployment_plan` compares them with the models of a server and decides the next steps; it is pure.
`deployed_models` takes these steps, and `topic_follower` reads the topic in a thread.

A `registered_model` is loaded in the process that answers requests. `deployment_status` reports
all of them.
"""
