"""Stores, and a folder of snapshots."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.pserver.snapshots.storage import SnapshotStorage
from tests.pserver.snapshots.broken_stores import Stores


@pytest.fixture(params=["memory", pytest.param("valkey", marks=pytest.mark.servers)])
def stores(request: pytest.FixtureRequest, fresh_name: Callable[[str], str]) -> Iterator[Stores]:
    url = request.getfixturevalue("valkey") if request.param == "valkey" else None
    stores = Stores(url, fresh_name)
    yield stores
    stores.close()


@pytest.fixture
def memory(fresh_name: Callable[[str], str]) -> Stores:
    return Stores(None, fresh_name)


@pytest.fixture
def storage(tmp_path: Path) -> SnapshotStorage:
    return SnapshotStorage(str(tmp_path / "shelf"))
