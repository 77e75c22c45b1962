"""`headrace experiment`: runs, shows and stops experiments, and promotes an arm.

`experiment_commands` has the group; `experiment_promotion` adds the promotion of an arm to it.

`run_modes` runs an experiment over files, tasks or a topic. `experiment_table` prints its arms, and
`promoted_processes` the commands of a promoted model.
"""
