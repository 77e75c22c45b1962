"""Experiments: many arms learn the same examples in one process, and are decided on soundly.

An experiment is one TOML file (`experiment_file`). It names a control, which is a model spec, and
arms: other values of keys of that spec, listed or searched in a space (`space`, `suggestions`).

A runner (`runner`) reads and decodes the examples once, and steps all arms in memory (`arm`). Every
arm begins with the first example of the log. So two arms have always scored the same examples, and
their losses are compared pair by pair, by batches of event time (`losses`). An arm's state is a
function of its spec and of its position in the log, and of nothing else. Its order among other
arms, the number of slots and a kill do not change a bit of it. *Refused:* arms that begin at the
head of the log. Their losses would be compared with those of a control that has learned for longer.

`rungs` stops weak arms early. `decisions` are made at any time and as often as wanted, by
confidence sequences (`confidence`) on batch means of event time. *Refused:* intervals per example
or per minute. Neighbouring examples depend on each other, and such intervals decided falsely in
98 % of simulated experiments between equal arms.

`history` records arms, rungs and decisions with their reasons. `run_folder` keeps what a killed
runner needs to go on as it would have.

`published_history` is the history of a live experiment as servers and reports read it.
`promotion_rules` says how a winning arm takes over traffic. `executors` learns the arms by tasks,
and `live` runs an experiment on a topic.
"""
