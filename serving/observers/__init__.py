"""Observers of answers: the prediction log and the shadow models.

Both run a `bounded_worker` thread and never delay an answer. `prediction_log` writes what was
served to Kafka, one message per candidate. `shadows` scores the requests of an alias
with other models, for comparison.

`score_sums` sums the scores of each model. `request_coverage` samples which fields requests have,
and finds those that no model declares.
"""
