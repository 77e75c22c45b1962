"""User and password of Redis: taken from the environment or the URL, and never shown."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pytest
import redis

from headrace.deploy.local.pipeline import LocalPipeline, PipelineSettings
from headrace.deploy.local.services.progress import SilentSetupProgress
from headrace.deploy.local.services.services import LocalServices
from headrace.deploy.models.shipped import path_of
from headrace.pserver.redis_backend.acl import ROLES
from tests.deploy.in_process import Commands, headrace

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["headrace"]

SECRET = "hunter2/+@:#secret"
QUOTED = "hunter2%2F%2B%40%3A%23secret"
COMMANDS = [("init", "--buckets", "4"), ("inspect",), ("inspect", "--json"), ("doctor",),
            ("doctor", "--json"), ("drop", "--yes", "--force")]  # fmt: skip


@pytest.fixture
def model(tmp_path: Path, fresh_name: Callable[[str], str]) -> tuple[str, str]:
    """The name of a model and the file of its spec."""
    name, path = fresh_name("secrets"), tmp_path / "model.toml"
    path.write_text(path_of("demo").read_text().replace('name = "demo"', f'name = "{name}"'))
    return name, str(path)


def let_in(valkey_node: str, headrace: Commands, model: tuple[str, str]) -> str:
    """Make the operator with the very line that `acl` prints; return the user's name."""
    printed = headrace("pserver", "acl", "--model", model[1], "--role", "operator")
    [line] = [each for each in printed.out.splitlines() if each.startswith("ACL SETUSER")]
    with closing(redis.Redis.from_url(valkey_node)) as admin:
        admin.execute_command(  # type: ignore[no-untyped-call]
            *line.replace(">PASSWORD", f">{SECRET}").split()
        )
    return f"{model[0]}-operator"


def test_user_and_password_come_from_the_environment_and_are_not_printed(
    valkey_node: str, headrace: Commands, model: tuple[str, str]
) -> None:
    user = let_in(valkey_node, headrace, model)
    login = {"HEADRACE_REDIS_USER": user, "HEADRACE_REDIS_PASSWORD": SECRET}
    for command in COMMANDS:
        to = ("--model", model[1], "--redis", valkey_node)
        ended = headrace("--log-level", "debug", "pserver", *command, *to, **login)
        assert ended.code == 0, ended
        assert "hunter2" not in ended.out + ended.err


def test_user_and_password_may_stand_in_the_url_and_are_not_printed(
    valkey_node: str, headrace: Commands, model: tuple[str, str]
) -> None:
    user = let_in(valkey_node, headrace, model)
    url = valkey_node.replace("://", f"://{user}:{QUOTED}@")
    for command in COMMANDS:
        ended = headrace("pserver", *command, "--model", model[1], HEADRACE_REDIS=url)
        assert ended.code == 0, ended
        assert "hunter2" not in ended.out + ended.err


@pytest.mark.parametrize("command", ["init", "inspect", "doctor", "drop", "keep"])
@pytest.mark.parametrize(
    "spoil",
    [
        lambda url: url.replace("secret@", "wrong@"),
        lambda url: url.replace("127.0.0.1", "127.0.0.1:1,127.0.0.2"),
        lambda url: url.replace(QUOTED, SECRET),
        lambda url: url + "?ssl_ca_certs=/nowhere",
    ],
    ids=["wrong password", "two hosts", "unquoted", "parameter"],
)
def test_a_refusal_does_not_print_the_password(
    valkey_node: str,
    headrace: Commands,
    model: tuple[str, str],
    command: str,
    spoil: Callable[[str], str],
) -> None:
    url = spoil(valkey_node.replace("://", f"://somebody:{QUOTED}@"))
    ended = headrace(
        "--log-level", "debug", "pserver", command, "--model", model[1], HEADRACE_REDIS=url
    )
    assert ended.code == 2
    assert "HEADRACE_REDIS" in ended.err
    assert "hunter2" not in ended.out + ended.err


def test_parts_get_the_url_by_their_environment_and_the_steps_do_not_show_it(
    tmp_path: Path,
) -> None:
    url = f"redis://somebody:{QUOTED}@redis"
    road = LocalPipeline(PipelineSettings(path_of("demo"), redis=url), SilentSetupProgress())
    parts = {part.name: part for part in road._parts("kafka:9092", url)}
    for name in ("server", "keeper", "learner"):
        assert parts[name].environment["HEADRACE_REDIS"] == url
    assert "hunter2" not in " ".join(word for part in parts.values() for word in part.arguments)

    class Steps(SilentSetupProgress):
        said: tuple[str, ...] = ()

        def step(self, text: str) -> None:
            self.said = (*self.said, text)

    steps = Steps()
    with LocalServices(kafka="kafka:9092", redis=url, directory=tmp_path, steps=steps):
        pass
    assert any("redis://redis:6379" in text for text in steps.said)
    assert "hunter2" not in " ".join(steps.said)


def test_acl_prints_a_line_for_every_role_and_refuses_others(
    headrace: Commands, model: tuple[str, str]
) -> None:
    printed = headrace("pserver", "acl", "--model", model[1])
    assert printed.code == 0
    assert printed.out.count("ACL SETUSER") == len(ROLES)
    refused = headrace("pserver", "acl", "--model", model[1], "--role", "root")
    assert refused.code == 2
    assert "server, learner, keeper, operator" in refused.err
