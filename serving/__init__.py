"""Answers requests from a replica of the model that follows the parameter server.

In the order of a request: `request` decodes and checks it, `predictor` turns it into scores,
`app` answers, `metrics` counts. Beside it `follower` keeps the replica fresh, `freshness` measures
how fresh, and `process` holds it all together.
"""
