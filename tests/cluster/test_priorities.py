"""Online parts take nodes from experiments by day and give them back at night."""

from tests.cluster.control_plane import ControlPlane
from tests.cluster.day_and_night import DAY, EXPERIMENTS, NIGHT, NODES, play


def test_online_parts_take_nodes_from_experiments_by_day_and_give_them_back(
    control_plane: ControlPlane,
) -> None:
    night, day, after = play(control_plane)
    assert day.online - night.online == DAY - NIGHT
    assert after.online == night.online
    # what the servers took by day, experiments lost
    assert night.experiments - day.experiments >= DAY - NIGHT - NODES
    assert day.waiting > 0
    # a pod that lost its node is no failure of its Job: every experiment runs or waits
    assert after.experiments + after.waiting == night.experiments + night.waiting == EXPERIMENTS
    assert abs(after.experiments - night.experiments) <= NODES
    assert night.utilisation > 2 * night.online_utilisation
    assert day.utilisation > 0.9
