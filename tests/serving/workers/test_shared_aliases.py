"""Aliases of several processes: all see a switch, and one of two concurrent switches fails."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from headrace.serving.errors import BadAlias
from headrace.serving.models.aliases import Alias
from headrace.serving.workers.mailbox import Mailbox
from headrace.serving.workers.shared_aliases import ALIASES_BYTES, SharedAliases, tell_aliases
from tests.serving.served_models import NOW_MS, Clock

MODELS = ("news", "news-2")


@pytest.fixture
def two(tmp_path: Path) -> Iterator[list[SharedAliases]]:
    boards = [Mailbox(tmp_path / "ALIASES", ALIASES_BYTES) for _ in range(2)]
    tell_aliases(boards[0], {"production": Alias("news")})
    with closing(boards[0]), closing(boards[1]):
        yield [SharedAliases(MODELS, each, Clock(), tmp_path / "kept.json") for each in boards]


def test_a_switch_in_one_process_is_the_others_at_once_and_is_kept(
    two: list[SharedAliases], tmp_path: Path
) -> None:
    one, other = two
    assert one.table == other.table == {"production": Alias("news")}
    one.switch("production", "news-2")
    switched = {"production": Alias("news-2", "news", NOW_MS)}
    assert one.table == other.table == switched
    kept = msgspec.json.decode((tmp_path / "kept.json").read_bytes(), type=dict[str, Alias])
    assert kept == switched
    assert other.revert("production").model == "news"
    assert one.table["production"].model == "news"
    other.switch("shadow", "news-2")
    one.remove("production")
    assert list(one.table) == list(other.table) == ["shadow"]


def test_a_conditional_switch_is_refused_after_another_worker_switched(
    two: list[SharedAliases],
) -> None:
    one, other = two
    one.switch("production", "news-2", expected="news")
    with pytest.raises(BadAlias, match="expected news, got news-2"):
        other.switch("production", "news-2", expected="news")
    with pytest.raises(BadAlias, match="one of the models news, news-2"):
        other.switch("production", "none")


def named(count: int) -> dict[str, Alias]:
    return {f"{'a' * 58}{each:06}": Alias("news") for each in range(count)}


def test_more_shared_aliases_than_fit_are_refused_before_a_write(tmp_path: Path) -> None:
    file = tmp_path / "kept.json"
    with closing(Mailbox(tmp_path / "ALIASES", ALIASES_BYTES)) as board:
        tell_aliases(board, many := named(3_360))  # one more does not fit
        aliases = SharedAliases(MODELS, board, Clock(), file)
        with pytest.raises(BadAlias, match="expected fewer aliases, got 3361"):
            aliases.switch("b" * 64, "news-2")
        assert aliases.table == many and not file.exists()
        with pytest.raises(BadAlias, match="got 9000"):
            tell_aliases(board, named(9_000))
        assert aliases.table == many
