"""A group of runners that share the arms of one live experiment, each arm on one runner.

All runners read all examples, because each arm needs the whole stream. The work is divided by the
partitions of a topic of the experiment (`sums.NAME`): Kafka's consumer group assigns them, and a
runner learns the arms whose number modulo the number of partitions is among its own. It publishes
the summed losses of its arms, block by block. From the log and these sums, each runner makes every
decision by itself, with the code of a runner that is alone (`ArmTasks`).

All else that decisions depend on is agreed in the first partition of the topic, whose order is the
same for all (`agreement`): the order of the partitions of examples, whether new arms may begin, the
saves, and the end. The runner with partition 0 proposes them. It is the leader: it alone writes the
folder and publishes the history. If there are two proposals for one step, the first one counts.

At an agreed step, each runner saves the models of its arms in the folder that all share, and the
leader then saves the state. After a change of the group, runners begin again with that state: a
lost arm must be learned again since then anyway, and the others would wait for it.

*Refused:* a leader that decides and sends its decisions. It needs the same sums, and its successor
would need the state of all decisions, which here each runner has. *Refused:* the losses of a block
in any order of arrival. Sums of floats depend on their order.

Read `group_member` (one runner), then `agreement`, `messages`, `group_arms` (its arms and the sums
of the others) and `group_folder`. `group_ports` is the edge, and `kafka_ports` implements it.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
