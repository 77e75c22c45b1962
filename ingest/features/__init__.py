"""Features: the fields of a model, and the encoder that turns events into ids and numbers.

`fields` parses the part of the model spec that joiner, learner and server must agree on, with the
policy that says when an impression becomes an example. `encoder` applies the fields to events
(`arrow_columns` to tables), with the hashes of `hashing`. `example_weights` decides how much an
example counts, and samples negatives.

`spec_text` is the text of a spec, with the line of each error, and `spec_sections` reads its
sections. `unknown_fields` finds what no field reads, and `number_ids` computes the ids of plain
numbers without numba. `field_sources` lists those that events and requests carry, and
`recent_coverage` counts how many of them do. `cells` reads the cells of files and rows.
"""
