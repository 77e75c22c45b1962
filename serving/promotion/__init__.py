"""Promotes the winning arm of an experiment, or rolls it back.

`promotion_state` is the state, as the topic keeps it. `promotion_checks` compares the figures of a
moment with the rules, and `promotion_steps` decides the next state; both are pure. The figures come
from the statuses of processes (`status_figures`) and from live evaluation (`served_loss`).
`promotion_controller` is the process.
"""
