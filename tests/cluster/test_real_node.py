"""A release on a real node keeps every event through kills, an upgrade, evictions and outages."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from tests.cluster.build import Programs, built
from tests.cluster.control_plane import ControlPlane
from tests.cluster.kill_and_roll import IMAGE, NEXT_TAG, as_table, play
from tests.cluster.node import Node, node_lacks
from tests.deploy.image.build import PLAIN

pytestmark = [pytest.mark.long, pytest.mark.timeout(3600)]


@pytest.fixture
def programs() -> Programs:
    """The programs of Kubernetes, and Helm."""
    found = built()
    if found is None:
        pytest.skip("Kubernetes is not built: `make cluster` builds it and runs these tests")
    return found


@pytest.fixture
def control_plane(programs: Programs, tmp_path: Path) -> Iterator[ControlPlane]:
    """A control plane whose only node is real, with the image."""
    if reason := node_lacks(programs):
        pytest.skip(reason)
    for name in ("control-plane", "node"):
        (tmp_path / name).mkdir()
    with (
        ControlPlane(programs, tmp_path / "control-plane") as control_plane,
        Node(control_plane, programs, tmp_path / "node") as node,
    ):
        node.load(PLAIN, f"{IMAGE}:{NEXT_TAG}")
        yield control_plane


def test_every_event_counts_once_while_pods_and_servers_are_killed_and_replaced(
    control_plane: ControlPlane,
    programs: Programs,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with capsys.disabled():
        console = Console()
        helm = programs.helm
        played = play(
            control_plane, helm, tmp_path, lambda line: console.print(line, highlight=False)
        )
        console.print(as_table(played))
    assert played.violations == []
    assert "rollout status deployment/demo-server" in played.notes
    assert played.left == []
    assert "disruption budget" in played.refused_eviction
    assert played.questions > 0
