"""Experiments: many arms learn the same examples in one process, and are decided on soundly.

An experiment is one TOML file (`experiment_file`). It names a control, which is a model spec, and
arms: other values of keys of that spec, listed or searched in a space (`space`, `suggestions`).

A runner (`runner`) reads the examples once, decodes them once, and steps all arms in memory
(`arm`). Each arm scores the candidates of a request before it learns them, as learners do. Every
arm begins with the first example of the log. So two arms have always scored the same examples, and
their losses are compared pair by pair, by batches of event time (`losses`). A later arm first
catches up: the runner always advances the arms that are furthest behind. An arm's state is
therefore a function of its spec and of its position in the log, and of nothing else. Its order
among other arms, the number of slots and a kill do not change a bit of it.

`rungs` is successive halving as ASHA (Li et al., "A System for Massively Parallel Hyperparameter
Tuning", MLSys 2020), with rungs in examples. At a rung, arms are ranked by their mean paired
difference to the control over all of their examples. The level of the loss, which swings by day
and night for all arms, cancels. Arms that differ by less than the standard error from the last one
that goes on do so too. The slot of a stopped arm goes to the next one.

`decisions` are made at any time and as often as wanted, by confidence sequences (`confidence`) on
batch means of event time. An arm that is worse is eliminated without waiting. An arm is better
at the end of a whole cycle only (a day, or what the file says), after ten batches or more, and with
the error probability divided by the number of arms. *Refused:* intervals per example or per minute.
Neighbouring examples depend on each other, and such intervals decided falsely in 98 % of simulated
experiments between equal arms.

`history` records arms, rungs and decisions with their reasons. `run_folder` keeps what a killed
runner needs to go on as it would have. Losses of arms that begin late need no second look at the
control: its sums by batch are kept. *Refused:* arms that begin at the head of the log. Their losses
would be compared with those of a control that has learned for longer.

`published_history` is the history of a live experiment as servers and reports read it.
`promotion_rules` says how a winning arm takes over traffic. `executors` learns the arms by tasks,
and `live` runs an experiment on a topic.
"""
