"""Passwords come from the environment or a URL, and are never printed or passed as arguments."""

import io
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
import redis
from rich.console import Console

from headrace.deploy.connections import client_settings, client_variable, kafka_settings, redis_url
from headrace.deploy.errors import BadOption
from headrace.deploy.local.pipeline import LocalPipeline, PipelineSettings
from headrace.deploy.local.services.progress import SetupProgress
from headrace.deploy.local.services.services import LocalServices
from headrace.deploy.models.shipped import path_of
from headrace.pserver.redis_backend.acl import ROLES
from tests.deploy.in_process import Commands

SECRET = "hunter2/+@:#secret"
QUOTED = "hunter2%2F%2B%40%3A%23secret"
COMMANDS = [("init", "--buckets", "4"), ("inspect",), ("inspect", "--json"), ("doctor",),
            ("doctor", "--json"), ("drop", "--yes", "--force")]  # fmt: skip


@pytest.fixture
def model(tmp_path: Path, fresh_name: Callable[[str], str]) -> tuple[str, str]:
    """The name of a model, and the file of its spec."""
    name, path = fresh_name("secrets"), tmp_path / "model.toml"
    path.write_text(path_of("demo").read_text().replace('name = "demo"', f'name = "{name}"'))
    return name, str(path)


def let_in(valkey_node: str, headrace: Commands, model: tuple[str, str]) -> str:
    """Create the operator with the line that `acl` prints; return the user name."""
    printed = headrace("pserver", "acl", "--model", model[1], "--role", "operator")
    [line] = [each for each in printed.out.splitlines() if each.startswith("ACL SETUSER")]
    with closing(redis.Redis.from_url(valkey_node)) as admin:
        admin.execute_command(  # type: ignore[no-untyped-call]
            *line.replace(">PASSWORD", f">{SECRET}").split()
        )
    return f"{model[0]}-operator"


@pytest.mark.parametrize("place", ["environment", "url"])
def test_user_and_password_of_redis_come_from_environment_or_url_and_are_not_printed(
    valkey_node: str, headrace: Commands, model: tuple[str, str], place: str
) -> None:
    user = let_in(valkey_node, headrace, model)
    variables = {"HEADRACE_REDIS": valkey_node.replace("://", f"://{user}:{QUOTED}@")}
    if place == "environment":
        variables = {"HEADRACE_REDIS_USER": user, "HEADRACE_REDIS_PASSWORD": SECRET}
        variables["HEADRACE_REDIS"] = valkey_node
    for command in COMMANDS:
        words = ("--log-level", "debug", "pserver", *command, "--model", model[1])
        ended = headrace(*words, **variables)
        assert ended.code == 0, ended
        assert "hunter2" not in ended.out + ended.err


@pytest.mark.parametrize("command", ["init", "keep"])
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
def test_a_refusal_does_not_print_the_password_of_redis(
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


PASSWORD_WITH_SPACES = f"{SECRET} and 'more' = \\"


@pytest.mark.parametrize("evaluated", [True, False], ids=["evaluated", "not evaluated"])
def test_no_secret_is_on_the_command_line_of_any_part(evaluated: bool) -> None:
    url = f"redis://somebody:{QUOTED}@redis"
    client = ["sasl.username=headrace", f"sasl.password={PASSWORD_WITH_SPACES}"]
    settings = PipelineSettings(
        model=path_of("demo"), redis=url, kafka_client=client, evaluate=evaluated
    )
    pipeline = LocalPipeline(settings, SetupProgress())
    parts = pipeline._parts("kafka:9092", url)

    assert len(parts) == 4 + evaluated
    for part in parts:
        assert "hunter2" not in " ".join(part.arguments), part.name
        assert "--kafka-client" not in part.arguments
        variable = part.environment["HEADRACE_KAFKA_CLIENT"]
        assert client_settings(variable.split()) == {
            "sasl.username": "headrace",
            "sasl.password": PASSWORD_WITH_SPACES,
        }
        if part.name in ("server", "keeper", "learner"):
            assert part.environment["HEADRACE_REDIS"] == url


@pytest.mark.parametrize("item", ['{"sasl.password":"hunter2"', '{"sasl.password":["hunter2"]}'])
def test_a_refused_setting_of_the_kafka_client_is_not_printed(item: str) -> None:
    with pytest.raises(BadOption, match="JSON object of strings") as raised:
        client_settings([item])
    assert "hunter2" not in str(raised.value)


def test_secrets_of_kafka_and_redis_can_be_in_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = tmp_path / "secret"
    secret.write_text(f"{SECRET}\n")
    found = kafka_settings("kafka:9092", [f"sasl.password.file={secret}", "sasl.username=me"])
    assert found.client == {"sasl.password": SECRET, "sasl.username": "me"}
    children = client_variable([f"sasl.password.file={secret}"])["HEADRACE_KAFKA_CLIENT"]
    assert SECRET not in children  # a child reads the file itself
    monkeypatch.setenv("HEADRACE_REDIS_USER", "me")
    monkeypatch.delenv("HEADRACE_REDIS_PASSWORD", raising=False)
    monkeypatch.setenv("HEADRACE_REDIS_PASSWORD_FILE", str(secret))
    assert redis_url("redis://redis") == f"redis://me:{QUOTED}@redis"


@pytest.mark.parametrize("content", [None, b"", b"\n", b"\xff"], ids=["none", "0", "line", "bytes"])
def test_a_file_without_a_secret_is_refused_by_name(tmp_path: Path, content: bytes | None) -> None:
    secret = tmp_path / "secret"
    if content is not None:
        secret.write_bytes(content)
    with pytest.raises(BadOption, match=rf"sasl.password.file: expected a file .*{secret}"):
        kafka_settings("kafka:9092", [f"sasl.password.file={secret}"])


def test_a_secret_given_twice_is_refused_without_its_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = tmp_path / "secret"
    secret.write_text(SECRET)
    with pytest.raises(BadOption, match=r"expected this or sasl\.password, got both") as raised:
        kafka_settings("kafka:9092", [f"sasl.password.file={secret}", f"sasl.password={SECRET}"])
    assert "hunter2" not in str(raised.value)
    monkeypatch.setenv("HEADRACE_REDIS_PASSWORD", SECRET)
    monkeypatch.setenv("HEADRACE_REDIS_PASSWORD_FILE", str(secret))
    with pytest.raises(BadOption, match="got both") as raised:
        redis_url("redis://redis")
    assert "hunter2" not in str(raised.value)


def test_a_step_of_the_setup_does_not_show_the_password_of_redis(tmp_path: Path) -> None:
    url = f"redis://somebody:{QUOTED}@redis"

    shown = io.StringIO()
    steps = SetupProgress(Console(file=shown))
    with LocalServices(kafka="kafka:9092", redis=url, directory=tmp_path, steps=steps):
        pass
    assert "redis://redis:6379" in shown.getvalue()
    assert "hunter2" not in shown.getvalue()


def test_acl_prints_a_line_for_every_role_and_refuses_an_unknown_role(
    headrace: Commands, model: tuple[str, str]
) -> None:
    printed = headrace("pserver", "acl", "--model", model[1])
    assert printed.code == 0
    assert printed.out.count("ACL SETUSER") == len(ROLES)
    refused = headrace("pserver", "acl", "--model", model[1], "--role", "root")
    assert refused.code == 2
    assert "server, learner, keeper, operator" in refused.err
