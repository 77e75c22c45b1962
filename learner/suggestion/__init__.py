"""Suggestion of a model spec from a log: `headrace suggest`.

`log_sample` reads the first impressions with their labels. `column_profile` decides what each
column holds, and `digit_ids` tells ids from magnitudes. `cross_search` finds pairs of columns that
say more together, and `spec_suggestion` writes the spec with its reasons as comments.

`outcome_columns` finds columns that are known only after the click, `request_clicks` tests whether
users choose one candidate of a request, and `robust_constants` chooses the constants.
"""
