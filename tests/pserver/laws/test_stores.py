"""The laws of a store, in memory, on embedded functions, on a cluster.

`test_access` has them on one server, for a user with the permissions of an operator.
"""

from collections.abc import Callable, Iterator
from contextlib import closing

import numpy as np
import pytest

from headrace.pserver.errors import MissingModel
from headrace.pserver.inspection.model_survey import drop_leftovers, survey
from headrace.pserver.redis_backend.node_connection import Call
from headrace.pserver.redis_backend.redis_store import StoreSettings, open_store
from headrace.pserver.rows.row_codec import FoldedRows
from headrace.pserver.store import Shape
from tests.pserver.laws.redis_laws import RedisLaws
from tests.pserver.laws.store_laws import StoreLaws, World
from tests.pserver.laws.store_worlds import EmbeddedWorld, MemoryWorld, RedisWorld
from tests.pserver.rows.entries import WIDTH


class TestMemoryStore(StoreLaws):
    @pytest.fixture
    def world(self) -> World:
        return MemoryWorld()


class TestEmbeddedFunctions(RedisLaws):
    @pytest.fixture
    def world(self) -> World:
        return EmbeddedWorld()


class TestCluster(RedisLaws):
    @pytest.fixture
    def world(self, valkey: str, fresh_name: Callable[[str], str]) -> Iterator[World]:
        world = RedisWorld(valkey, fresh_name("laws"))
        yield world
        world.store.close()


@pytest.mark.parametrize("rows", [5, 300])
@pytest.mark.parametrize("sub_hashes", [1, 256, 4096])
def test_a_lost_shape_is_created_again_with_the_sub_hashes_of_its_buckets(
    valkey_node: str, fresh_name: Callable[[str], str], sub_hashes: int, rows: int
) -> None:
    shape = Shape(fresh_name("survivors"), 4, WIDTH, "fingerprint", "spec")
    settings = StoreSettings(sub_hashes=sub_hashes)
    ids = np.random.default_rng(3).integers(1 << 62, 1 << 63, rows, np.uint64)  # bucket 1
    ones = np.ones(rows, np.uint64)
    seen = np.ones(rows, np.uint32)
    written = FoldedRows(ids, ones, ones, seen, seen, np.ones((rows, WIDTH), np.float32))
    with closing(open_store(valkey_node, shape.model, settings)) as store:
        store.begin(shape)
        for bucket in range(4):
            store.load(bucket, 1, {}, [written] if bucket == 1 else [])
        store.finish()
        store.nodes.run([Call(key, ("DEL", key)) for key in (_shape_key(shape), *_some(shape))])
    with closing(open_store(valkey_node, shape.model)) as store:
        store.begin(shape)
        assert store.missing() == [3]
        store.load(3, 1, {}, [])
        store.finish()
        assert store.sub_hashes == sub_hashes
        [found] = store.look({1: ids}, {1: 1}, 1)
        assert not isinstance(found, Exception)
        assert found.rows.rows.ids.shape[0] == rows
        store.drop()


def _shape_key(shape: Shape) -> bytes:
    return f"{{{shape.model}}}:shape".encode()


def _some(shape: Shape) -> list[bytes]:
    return [f"{{{shape.model}:3}}:{name}".encode() for name in ("marks", "log")]


@pytest.mark.parametrize(("chosen", "expected"), [(None, 2048), (8, 8)])
def test_a_model_keeps_its_number_of_sub_hashes_for_every_process(
    valkey_node: str, fresh_name: Callable[[str], str], chosen: int | None, expected: int
) -> None:
    shape = Shape(fresh_name("sub-hashes"), 8, WIDTH, "fingerprint", "spec")
    with closing(open_store(valkey_node, shape.model, StoreSettings(sub_hashes=chosen))) as store:
        store.create(shape)
    for wanted in (None, 64):
        settings = StoreSettings(sub_hashes=wanted)
        with closing(open_store(valkey_node, shape.model, settings)) as store:
            store.create(shape)
            assert store.sub_hashes == expected
    with closing(open_store(valkey_node, shape.model)) as store:
        store.drop()


def test_environments_with_one_model_name_share_no_key_of_a_store(
    valkey_node: str, fresh_name: Callable[[str], str]
) -> None:
    model = fresh_name("shared")
    shape = Shape(model, 4, WIDTH, "fingerprint", "spec")
    one, other, bare = (
        open_store(valkey_node, model, StoreSettings(sub_hashes=4, key_prefix=prefix))
        for prefix in ("team-a.", "team-b.", "")
    )
    with closing(one), closing(other), closing(bare):
        one.create(shape)
        assert one.shape() == shape
        assert one.key(3, "log") == f"{{team-a.{model}:3}}:log".encode()
        for absent in (other, bare):
            with pytest.raises(MissingModel):
                absent.shape()
        bare.create(shape)
        other.create(shape)
        drop_leftovers(other, survey(other, model).nodes)
        other.drop()
        assert one.missing() == []
        assert bare.missing() == []
        with pytest.raises(MissingModel):
            other.shape()
