"""`headrace experiment`: runs, shows and stops experiments, and promotes an arm.

`experiment_commands` runs an experiment over files, tasks or a topic, and shows it;
`experiment_table` prints its arms. `experiment_promotion` promotes an arm.
"""
