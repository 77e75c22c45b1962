"""The command line: what it refuses, how fast, in which words; flags before variables."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.deploy import connections as building
from headrace.deploy.cli.main import main
from headrace.deploy.local.services.ports import free_port
from headrace.deploy.models.shipped import path_of
from headrace.runtime.termination import REFUSED, UNREACHABLE
from tests.deploy.command import headrace

DEMO = str(path_of("demo"))
SECONDS = 30.0
"""A refusal takes 2 to 6 s, most of it importing; this is for a busy machine."""


Refused = Callable[..., str]
COMMANDS = ["run", "demo", "ingest join", "learner run", "pserver restore", "serving run"]


@pytest.fixture
def refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Refused]:
    """Runs a command that is refused, in this process; returns its one message."""
    before = dict(os.environ)
    for name in before:
        if name.startswith("HEADRACE_"):
            monkeypatch.delenv(name)

    def run(*arguments: str, status: int = REFUSED, **variables: str) -> str:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(sys, "argv", ["headrace", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr().err
        assert ended.value.code == status, said
        assert "Traceback" not in said
        return said

    yield run
    monkeypatch.undo()
    os.environ.clear()
    os.environ.update(before)


def test_a_refusal_is_one_message_on_standard_error_within_seconds() -> None:
    address = f"127.0.0.1:{free_port()}"
    result = headrace("pserver", "init", "--model", DEMO, "--redis", f"redis://{address}",
                      timeout_s=SECONDS)  # fmt: skip
    assert result.returncode == UNREACHABLE
    assert result.stdout == ""
    assert result.stderr.startswith("headrace: ")
    assert result.stderr.rstrip().endswith("[Unreachable]"), "the class that errors.md explains"
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    "command",
    [
        ("ingest", "join", "--model", DEMO),
        ("ingest", "topics", "--model", DEMO),
        ("ingest", "replay", "--model", DEMO, "--data", "."),
    ],
    ids=lambda command: command[1],
)
def test_a_wrong_kafka_address_is_named_with_its_setting(
    refused: Refused, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    usual = building.kafka_settings
    # how long is the usual wait, `run` shows below
    monkeypatch.setattr(
        building, "kafka_settings", lambda *to: replace(usual(*to), connect_timeout_s=0.5)
    )
    address = f"127.0.0.1:{free_port()}"
    said = refused(*command, "--kafka", address, status=UNREACHABLE)
    assert address in said
    assert "--kafka" in said
    assert "HEADRACE_KAFKA" in said


@pytest.mark.parametrize(
    "command",
    [("learner", "run"), ("pserver", "init"), ("pserver", "keep"), ("pserver", "inspect"),
     ("serving", "run")],
    ids=" ".join,
)  # fmt: skip
def test_a_wrong_redis_address_is_named_with_its_setting_within_seconds(
    refused: Refused, command: tuple[str, ...]
) -> None:
    address = f"127.0.0.1:{free_port()}"
    to = ("--model", DEMO, "--redis", f"redis://{address}")
    said = refused(*command, *to, status=UNREACHABLE)
    assert address in said
    assert "--redis" in said
    assert "HEADRACE_REDIS" in said


@pytest.fixture
def empty_log(tmp_path: Path) -> Path:
    """A log of nothing."""
    for name in ("impressions", "clicks"):
        (tmp_path / f"{name}.ndjson").touch()
    return tmp_path


def test_run_with_wrong_addresses_fails_before_anything_is_started(
    refused: Refused, empty_log: Path
) -> None:
    kafka, redis = (f"127.0.0.1:{free_port()}" for _ in range(2))
    data = ("run", "--model", DEMO, "--data", str(empty_log), "--no-check")
    to = ("--kafka", kafka, "--redis", f"redis://{redis}")
    said = refused(*data, *to, status=UNREACHABLE)
    assert kafka in said
    assert "--kafka" in said
    assert "HEADRACE_KAFKA" in said


def test_a_spec_with_an_unknown_transform_is_refused_naming_the_line(
    refused: Refused, empty_log: Path
) -> None:
    spec = empty_log / "odd.toml"
    text = path_of("demo").read_text().replace('transform = "hour"', 'transform = "minute"')
    spec.write_text(text)
    line = text[: text.index('"minute"')].count("\n") + 1
    said = refused("run", "--model", str(spec), "--data", str(empty_log))
    assert f"{spec}:{line}: " in said
    assert '"minute"' in said


def test_a_missing_spec_is_refused(refused: Refused, tmp_path: Path) -> None:
    assert str(tmp_path / "none.toml") in refused(
        "learner", "run", "--model", str(tmp_path / "none.toml")
    )


def test_a_missing_or_empty_data_directory_is_refused(refused: Refused, tmp_path: Path) -> None:
    run = ("run", "--model", DEMO, "--data")
    assert "none" in refused(*run, str(tmp_path / "none"))
    assert "impressions.ndjson" in refused(*run, str(tmp_path))


def test_a_flag_overrides_its_variable_and_a_variable_its_default(refused: Refused) -> None:
    flag, variable = (f"127.0.0.1:{free_port()}" for _ in range(2))
    init, address = ("pserver", "init", "--model", DEMO), f"redis://{variable}"
    said = refused(*init, HEADRACE_REDIS=address, status=UNREACHABLE)
    assert variable in said
    said = refused(*init, "--redis", f"redis://{flag}", HEADRACE_REDIS=address, status=UNREACHABLE)
    assert flag in said
    assert variable not in said


@pytest.mark.parametrize("speed", ["fast", "0", "-1", "inf", "nan"])
def test_an_invalid_speed_is_refused(refused: Refused, tmp_path: Path, speed: str) -> None:
    run = ("run", "--model", DEMO, "--data", str(tmp_path))
    said = refused(*run, "--speed", speed, COLUMNS="200")
    assert "expected a number above 0, or max" in said


def test_a_kafka_client_setting_without_a_value_is_refused(refused: Refused) -> None:
    said = refused("ingest", "join", "--model", DEMO, "--kafka-client", "security.protocol")
    assert "expected KEY=VALUE, got 'security.protocol'" in said


_RUNS_AND_LISTS_MODULES = """
import sys
from headrace.deploy.cli.main import main
try:
    main()
finally:
    print("modules", *{name.partition(".")[0] for name in sys.modules})
"""
HEAVY = {"confluent_kafka", "fastapi", "numba", "numpy", "pyarrow", "redis", "torch"}
"""Packages that take from a tenth of a second to seconds to import."""


def modules_of(*arguments: str) -> set[str]:
    """Run a command in a new process; return the packages that it has imported."""
    ended = subprocess.run(
        [sys.executable, "-P", "-c", _RUNS_AND_LISTS_MODULES, *arguments],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert ended.returncode in (0, REFUSED), ended.stderr
    return set(ended.stdout.splitlines()[-1].split()[1:])


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_imports_no_heavy_package(command: str) -> None:
    assert HEAVY & modules_of(*command.split(), "--help") == set()


def test_a_refused_option_imports_no_heavy_package() -> None:
    imported = modules_of("run", "--model", DEMO, "--data", ".", "--speed", "fast")
    assert HEAVY & imported == {"numpy"}  # the spec was read first


@pytest.mark.parametrize(
    "command",
    [
        *("run --data .", "ingest topics", "ingest join", "ingest sink ."),
        *("ingest replay --data .", "learner run", "pserver init", "pserver keep"),
        *("pserver doctor", "pserver snapshot .", "pserver restore .", "serving run"),
        *("serving score", "evaluate run"),
    ],
)
def test_a_refused_spec_imports_no_heavy_package(tmp_path: Path, command: str) -> None:
    (tmp_path / "broken.toml").write_text("[modle]\n")
    imported = modules_of(*command.split(), "--model", str(tmp_path / "broken.toml"))
    assert HEAVY & imported <= {"numpy"}


def test_the_version_is_that_of_the_package() -> None:
    from importlib.metadata import version

    assert headrace("--version").stdout == f"headrace {version('headrace')}\n"


def test_init_creates_a_model_once_and_inspect_shows_its_buckets(
    refused: Refused, valkey: str, tmp_path: Path, fresh_name: Callable[[str], str]
) -> None:
    name = fresh_name("cli")
    spec = tmp_path / "model.toml"
    spec.write_text(path_of("demo").read_text().replace('name = "demo"', f'name = "{name}"'))
    to = ("--model", str(spec), "--redis", valkey)
    assert name in refused("pserver", "inspect", *to)
    for _ in range(2):
        made = headrace("pserver", "init", *to, "--buckets", "4")
        assert made.returncode == 0, made.stderr
        assert f"{name}: 4 buckets" in made.stdout
    shown = headrace("pserver", "inspect", *to)
    assert shown.returncode == 0, shown.stderr
    assert f"{name}: 4 buckets" in shown.stdout
    assert [line.split()[0] for line in shown.stdout.splitlines()[-4:]] == ["0", "1", "2", "3"]
    assert "8" in refused("pserver", "init", *to, "--buckets", "8")
    spec.write_text(spec.read_text().replace("alpha = ", "alpha = 1"))
    assert "alpha" in refused("serving", "run", *to)


def test_a_number_of_buckets_that_is_not_a_power_of_two_is_refused(refused: Refused) -> None:
    said = refused("pserver", "init", "--model", DEMO, "--buckets", "12")
    assert "--buckets / HEADRACE_BUCKETS: expected a power of two" in said


_OWN_MODULE = """\
import torch
class Net(torch.nn.Module):
    def __init__(self, form):
        super().__init__()
        self.last = torch.nn.Linear(form.vectors * form.dimensions{more}, 1)
    def forward(self, batch):
        return batch.wide + self.last(batch.vectors.flatten(1)).squeeze(1)
"""
_OWN_SPEC = """\
[model]
name = "{name}"
architecture = "module"
module = "own:Net"
[fields.item]
number = 1
transform = "id"
"""


def _path(folder: Path) -> str:
    """Return an import path that begins with a folder."""
    return os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))


def test_init_refuses_a_model_with_a_broken_torch_module(
    refused: Refused, valkey: str, tmp_path: Path, fresh_name: Callable[[str], str]
) -> None:
    pytest.importorskip("torch", reason="deep models are an extra: pip install headrace[deep]")
    name, spec, own = fresh_name("cli"), tmp_path / "model.toml", tmp_path / "own.py"
    spec.write_text(_OWN_SPEC.format(name=name))
    to = ("--model", str(spec), "--redis", valkey)
    own.write_text(_OWN_MODULE.format(more=" + 1"))
    made = headrace("pserver", "init", *to, PYTHONPATH=_path(tmp_path))
    assert made.returncode == REFUSED
    assert f"{own}:7" in made.stderr
    assert name in refused("pserver", "inspect", *to)
    own.write_text(_OWN_MODULE.format(more=""))
    made = headrace("pserver", "init", *to, PYTHONPATH=_path(tmp_path))
    assert made.returncode == 0, made.stderr


def test_init_creates_a_model_with_a_torch_module_without_torch(
    valkey: str, tmp_path: Path, fresh_name: Callable[[str], str]
) -> None:
    name, spec = fresh_name("cli"), tmp_path / "model.toml"
    spec.write_text(_OWN_SPEC.format(name=name))
    missing = "raise ModuleNotFoundError('No module named torch', name='torch')\n"
    (tmp_path / "torch.py").write_text(missing)
    to = ("--model", str(spec), "--redis", valkey)
    made = headrace("pserver", "init", *to, PYTHONPATH=_path(tmp_path))
    assert made.returncode == 0, made.stderr
