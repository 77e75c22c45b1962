"""Steps the arms of an experiment in parallel: local processes or Spark tasks.

The coordinator cuts the log into chunks and stages each as a file (`staged_log`). A task learns one
chunk for one arm (`arm_task`): it reads the arm's checkpoint, learns the blocks of the chunk, and
writes the next checkpoint with the scores. The coordinator then takes the scores block by block, in
the order of the serial runner (`remote_arms`). Ranks, looks and new arms therefore come at the same
examples with every executor, and the history has the same bytes.

A task is a function of its files. It may be repeated, by Spark, after a kill or on another machine:
a checkpoint that is complete is not learned again.

*Refused:* arms that decide as their tasks finish. The order of finished tasks depends on the load
of the machine, and two runs would keep other arms.

`executor_kind` names the kinds, and `execution` opens one.
"""
