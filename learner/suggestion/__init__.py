"""Suggestion of a model spec from a log: `headrace suggest`.

`log_sample` reads the first impressions with their labels. `column_profile` decides what each
column holds, and `digit_ids` tells ids from magnitudes. `outcome_columns` finds columns that are
known only after the click, `request_clicks` tests whether users choose one candidate of a request,
`user_history` finds what a user clicked before, `delay_mixture` fits the delays of clicks, and
`robust_constants` chooses the constants.

`spec_suggestion` makes a `spec_draft` by these rules. `spec_search` then adds to it what lowers the
log loss: `search_candidates` names the changes, and `sample_stream` learns the sample in memory.
`spec_suggestion` writes the result with its reasons as comments.
"""
