"""One control plane for all tests of this folder, which use namespaces of their own."""

from collections.abc import Iterator

import pytest

from tests.cluster.build import built
from tests.cluster.control_plane import ControlPlane


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A running control plane without nodes."""
    programs = built()
    if programs is None:
        pytest.skip("Kubernetes is not built: `make cluster` builds it and runs these tests")
    with ControlPlane(programs, tmp_path_factory.mktemp("cluster")) as running:
        yield running
