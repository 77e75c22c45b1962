"""Answers prediction requests from replicas that follow the parameter server.

Read `process` first: it puts a server together. Then follow a request: `api` receives it,
`requests` decodes it, `models` scores it with rows of `replicas`, and `observers` get the answer
afterwards (prediction log, shadow models). `workers` spreads one server over several processes.

Three parts run without HTTP requests: `scoring` writes predictions for impressions from Kafka,
`evaluation` measures the accuracy of what was served, and `page` draws both for operators.

`deployments` loads and unloads models while servers run, `promotion` moves the traffic to a winning
arm step by step, and `relaying` replaces the logs by one Kafka topic.
"""
