"""Golden files of the formats of version 1, and tests that today's code still reads them.

`v1/` has what headrace 0.1 wrote: topics of events, examples, dead letters, deployments and a
relay, the offsets of a joiner, the keys of a store, a snapshot, an archive and a table of aliases.
`golden` reads and writes these files, `small_model` runs joiners and learners over them, and
`record` wrote them. Tests never write them again: a file that changes hides a format that changed.
The files of a later format go into a folder beside `v1/`, and those of version 1 stay.
"""
