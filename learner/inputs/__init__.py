"""The inputs of an example: which rows they are, and which ids get a row at all.

Read `slates` (the examples that are scored together), `example_inputs` (what the inputs are, and
finding their rows), `statistics` (counters of rows as inputs), `admission` and `rare_rows` (ids
without a row of their own), `preparation` (the arguments of kernels), and `required_rows` (for
learners that hold only some rows).

A bag has many items. `bag_weights` weighs them by position, `learned_weights` by what was learned.
The last items that a user clicked are a bag that comes from rows: `click_slots` keeps them,
`click_histories` adds them to examples, `history_kernels` does both in compiled code.
`click_delays` weighs the shows of a young model.
"""
