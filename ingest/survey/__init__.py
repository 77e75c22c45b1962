"""Survey of a log: what the joiner would refuse, miss and join, without starting anything.

`log_survey` reads a log once, in columns, and returns `findings`. The joiner's own decoder reads
NDJSON, so its reasons are exact. `headrace check` prints a survey, and `headrace run` makes one
before it starts.

`table_survey` reads tables and `ndjson_survey` directories. `table_refusals` finds the rows of a
table that the joiner would refuse, and `event_tallies` counts impressions, clicks and their pairs.
"""
