"""Tests that a living model gets more buckets, and learns every offset once, on real servers."""

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from headrace.deploy.cli.main import app
from headrace.deploy.errors import BadOption
from headrace.learner.spec.model_spec import load_spec
from headrace.pserver.errors import MissingModel, ModelExists, Resharded
from headrace.pserver.inspection.model_survey import survey
from headrace.pserver.redis_backend.node_connection import Call
from headrace.pserver.redis_backend.redis_store import RedisStore, StoreSettings, open_store
from headrace.pserver.snapshots.resharding import reshard
from headrace.pserver.snapshots.snapshot_errors import DoesNotFit
from headrace.pserver.snapshots.writer import SnapshotProgress
from headrace.pserver.store import Shape
from tests.pserver.rows.entries import WIDTH
from tests.pserver.snapshots.snapshot_world import BUCKETS, History, Lively, busy_keeper, rows_in

pytestmark = pytest.mark.servers


class Resharding:
    """A model on a cluster, with processes that opened it before and after a reshard."""

    def __init__(self, url: str, model: str) -> None:
        self.url, self.shape = url, Shape(model, BUCKETS, WIDTH, "fingerprint", "the spec")
        self._open: list[RedisStore] = []
        self.store = self.opened()
        self.store.create(self.shape)
        assert self.store.shape() == self.shape

    def opened(self) -> RedisStore:
        store = open_store(self.url, self.shape.model, StoreSettings(sub_hashes=8))
        self._open.append(store)
        return store

    def grow(
        self,
        buckets: int,
        store: Any = None,
        tell: Callable[[SnapshotProgress], None] = lambda _: None,
        stop: threading.Event | None = None,
    ) -> int | None:
        return reshard(
            store or self.opened(),
            self.opened().successor(buckets),
            now_ms=lambda: 0,
            stop=stop or threading.Event(),
            tell=tell,
        )

    def existing_keys(self) -> list[bytes]:
        """The keys of the model that exist, among those of any generation and bucket."""
        tags = [f"{{{self.shape.model}}}:shape", f"{{{self.shape.model}}}:reshard"]
        for generation in ("", "1.", "2.", "3."):
            for bucket in range(64):
                tag = f"{{{self.shape.model}:{generation}{bucket}}}"
                tags += [f"{tag}:{name}" for name in ("marks", "log", "rows:0", "rows:7")]
        keys = [tag.encode() for tag in tags]
        replies = self.store.nodes.run([Call(key, ("EXISTS", key)) for key in keys])
        return [key for key, reply in zip(keys, replies, strict=True) if reply == 1]

    def close(self) -> None:
        for store in self._open:
            store.close()


@pytest.fixture
def world(valkey: str, fresh_name: Callable[[str], str]) -> Iterator[Resharding]:
    with closing(Resharding(valkey, fresh_name("reshard"))) as world:
        yield world


def test_a_reshard_during_pushes_folds_and_trims_learns_every_offset_once(
    world: Resharding,
) -> None:
    seed = random.randrange(1 << 30)
    history = History(world.store, world.shape, seed)
    history.push_all(5)
    keeper = busy_keeper(world.store, world.shape, seed)
    lively = Lively(history, keeper, random.Random(seed))
    assert world.grow(4 * BUCKETS, lively)
    assert lively.bustles > BUCKETS, f"seed {seed}"
    grown = world.opened()
    assert grown.shape().buckets == 4 * BUCKETS
    # a learner that has not looked yet still pushes to the old buckets, in vain
    world.store._calls._checked_s = float("inf")
    history.push_all(3)
    # the next learner begins at the marks, and pushes what the new buckets lack
    history.supply(grown, grown.shape())
    assert rows_in(grown, grown.shape()) == history.truth(), f"seed {seed}"
    # a keeper folds and trims the new buckets
    tending = busy_keeper(grown, grown.shape(), seed)
    for _ in range(20):
        tending.step()
    assert rows_in(world.opened(), grown.shape()) == history.truth(), f"seed {seed}"


def test_processes_with_the_old_buckets_stop_at_their_next_push_lease_or_look_at_marks(
    world: Resharding,
) -> None:
    history = History(world.store, world.shape)
    history.push_all(2)
    world.grow(2 * BUCKETS)
    world.store._calls._checked_s = 0.0  # a second has passed
    with pytest.raises(Resharded, match="expected generation 0"):
        history.push(0)
    world.store._calls._checked_s = 0.0
    with pytest.raises(Resharded, match="Start this process again"):
        world.store.claim(0, "keeper", 1_000)
    world.store._calls._checked_s = 0.0
    with pytest.raises(Resharded, match="expected generation 0"):
        world.store.marks([0])  # a learner without new examples looks every second


@pytest.mark.parametrize("grown", [1, 2])
def test_a_survey_without_the_shape_finds_the_buckets_of_the_newest_complete_generation(
    world: Resharding, grown: int
) -> None:
    history = History(world.store, world.shape)
    history.push_all(3)
    for generation in range(1, grown + 1):
        if generation > 1:
            world.opened().remove_old()
        world.grow(BUCKETS << generation)
    store = world.opened()
    store._calls.one(store._calls.shape_key, "DEL", store._calls.shape_key)
    found = survey(world.opened(), world.shape.model)
    assert isinstance(found.trouble, MissingModel)
    assert [each.bucket for each in found.buckets] == list(range(BUCKETS << grown))
    assert all(each.there for each in found.buckets)


def test_old_buckets_serve_until_they_are_removed(world: Resharding) -> None:
    history = History(world.store, world.shape)
    history.push_all(4)
    world.grow(2 * BUCKETS)
    assert rows_in(world.store, world.shape) == history.truth()
    with pytest.raises(ModelExists, match="--remove-old"):
        world.grow(4 * BUCKETS)
    grown = world.opened()
    assert grown.remove_old() == BUCKETS
    assert grown.remove_old() == 0
    assert not any(b":1." not in key and b"shape" not in key for key in world.existing_keys())
    assert rows_in(grown, grown.shape()) == history.truth()
    assert world.grow(8 * BUCKETS)
    again = world.opened()
    assert rows_in(again, again.shape()) == history.truth()


@pytest.mark.parametrize("killed", [True, False])
def test_an_interrupted_reshard_changes_nothing_and_the_next_one_begins_anew(
    world: Resharding, killed: bool
) -> None:
    history = History(world.store, world.shape)
    history.push_all(3)
    stop = threading.Event()

    class Killed(Exception):
        pass

    def interrupt(progress: SnapshotProgress) -> None:
        if progress.done == BUCKETS // 2:
            stop.set()
            if killed:
                raise Killed

    if killed:
        with pytest.raises(Killed):
            world.grow(8 * BUCKETS, tell=interrupt, stop=stop)
    else:
        assert world.grow(8 * BUCKETS, tell=interrupt, stop=stop) is None
    assert world.opened().shape() == world.shape
    history.push_all(2)
    assert world.grow(2 * BUCKETS)
    grown = world.opened()
    assert grown.shape().buckets == 2 * BUCKETS
    assert rows_in(grown, grown.shape()) == history.truth()
    numbers = {key.split(b".")[1].split(b"}")[0] for key in world.existing_keys() if b":2." in key}
    assert numbers == {b"%d" % bucket for bucket in range(2 * BUCKETS)}
    assert not any(b":1." in key for key in world.existing_keys()), "leftovers are removed"


@pytest.mark.parametrize("buckets", [BUCKETS // 2, BUCKETS])
def test_a_reshard_to_no_more_buckets_is_refused(world: Resharding, buckets: int) -> None:
    with pytest.raises(DoesNotFit, match=f"got {buckets}"):
        world.grow(buckets)
    assert world.opened().shape() == world.shape


def test_dropping_a_resharded_model_removes_the_keys_of_all_its_buckets(world: Resharding) -> None:
    History(world.store, world.shape).push_all(2)
    world.grow(2 * BUCKETS)
    assert len(world.existing_keys()) > BUCKETS
    world.opened().drop()
    assert world.existing_keys() == []


def test_the_command_reshards_a_model_and_removes_its_old_buckets(
    valkey: str,
    fresh_name: Callable[[str], str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "model.toml"
    name = fresh_name("reshard")
    path.write_text(
        f'[model]\nname = "{name}"\n[fields]\nuser = {{ number = 1, transform = "id" }}\n'
    )
    spec = load_spec(path)
    with closing(open_store(valkey, name)) as store:
        store.create(Shape(name, 4, spec.width, spec.fingerprint, spec.text))
    reshard = ["pserver", "reshard", "--model", str(path), "--redis", valkey]
    with pytest.raises(BadOption, match="either --buckets or --remove-old"):
        app(reshard, standalone_mode=False)
    app([*reshard, "--buckets", "16"], standalone_mode=False)
    app([*reshard, "--remove-old"], standalone_mode=False)
    shown = capsys.readouterr().out
    assert f"{name}: 16 buckets with 0 rows" in shown
    assert f"{name}: removed 4 old buckets" in shown
    with closing(open_store(valkey, name)) as store:
        assert store.shape().buckets == 16
        store.drop()
