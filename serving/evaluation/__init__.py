"""Live evaluation: accuracy of the served and the learned scores, minute by minute.

A `feeder` takes `messages` from the topics of examples, scores and predictions. The `evaluator`
folds them into panes of a minute (`window_pane`, `tally`), and `windows` turns panes into metrics.
`faust_agent` keeps the evaluator's state in Kafka. `evaluation_process` runs it all.

`served_arms` compares the models of a split alias, and `evaluation_metrics` has the gauges of the
process.
"""
