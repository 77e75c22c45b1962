"""The command line: what it refuses, in which words, with which imports; flags before variables."""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.deploy.connections import kafka_settings
from headrace.deploy.local.services.ports import free_port
from headrace.deploy.models.shipped import path_of
from headrace.runtime.termination import REFUSED, UNREACHABLE
from tests.deploy.command import headrace as run_process
from tests.deploy.in_process import Commands, commands

DEMO = str(path_of("demo"))
Refused = Callable[..., str]


@pytest.fixture
def refused(headrace: Commands) -> Refused:
    """Runs a command that is refused, in this process; returns its one message."""

    def run(*arguments: str, status: int = REFUSED, **variables: str) -> str:
        ended = headrace(*arguments, **variables)
        assert ended.code == status, ended.err
        return ended.err

    return run


def test_a_refusal_is_one_message_on_standard_error() -> None:
    address = f"127.0.0.1:{free_port()}"
    result = run_process("pserver", "init", "--model", DEMO, "--redis", f"redis://{address}")
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
    # how long is the usual wait, `run` shows below
    monkeypatch.setattr(
        "headrace.deploy.options.kafka_settings",
        lambda *to: replace(kafka_settings(*to), connect_timeout_s=0.5),
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
def test_a_wrong_redis_address_is_named_with_its_setting(
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


SPEED = "expected a number above 0, or max"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("learner", "run", "--model", "none.toml"), "none.toml"),
        *((("run", "--model", DEMO, "--data", ".", "--speed", speed), SPEED)
          for speed in ("fast", "0", "-1", "inf", "nan")),
        (("ingest", "join", "--model", DEMO, "--kafka-client", "security.protocol"),
         "expected KEY=VALUE, got 'security.protocol'"),
        (("pserver", "init", "--model", DEMO, "--buckets", "12"),
         "--buckets / HEADRACE_BUCKETS: expected a power of two"),
        (("serv",), "No such command 'serv'. Did you mean serving or pserver?"),
        (("serving", "rn"), "No such command 'rn'. Did you mean run?"),
        (("collect",), "Did you mean ingest collect?"),
        (("nothing-like-it",), "No such command 'nothing-like-it'."),
    ],
)  # fmt: skip
def test_a_wrong_option_is_refused_with_what_it_expects(
    refused: Refused, words: tuple[str, ...], said: str
) -> None:
    assert said in refused(*words, COLUMNS="200")


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


HEAVY = ("confluent_kafka", "fastapi", "numba", "numpy", "pyarrow", "redis", "torch")
"""Packages that take from a tenth of a second to seconds to import."""
_RUNS_AND_LISTS_PACKAGES = """
import contextlib, io, sys
from headrace.deploy.cli.main import main
for words in sys.argv[1:]:
    sys.argv = ["headrace", *words.split()]
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
        main()
    print(words, *sorted({name.partition(".")[0] for name in sys.modules}))
"""


def imported_by(*commands: str) -> dict[str, set[str]]:
    """Run commands in one new process; return the heavy packages that each found or imported."""
    arguments = [sys.executable, "-P", "-c", _RUNS_AND_LISTS_PACKAGES, *commands]
    ended = subprocess.run(arguments, capture_output=True, text=True, timeout=120, check=True)
    lines = ended.stdout.splitlines()
    return {
        words: {*line.removeprefix(words).split()} & {*HEAVY}
        for words, line in zip(commands, lines, strict=True)
    }


def test_help_imports_no_heavy_package() -> None:
    shown = ["--help", *(f"{name} --help" for name, _ in commands())]
    assert [words for words, found in imported_by(*shown).items() if found] == []


def test_a_refused_option_or_spec_imports_no_heavy_package(tmp_path: Path) -> None:
    (tmp_path / "broken.toml").write_text("[modle]\n")
    refused = [f"run --model {DEMO} --data . --speed fast"]  # the spec is read first, with numpy
    refused += [
        f"{words} --model {tmp_path / 'broken.toml'}"
        for words in (
            *("run --data .", "ingest topics", "ingest join", "ingest sink ."),
            *("ingest replay --data .", "learner run", "pserver init", "pserver keep"),
            *("pserver doctor", "pserver snapshot .", "pserver restore .", "serving run"),
            *("serving score", "evaluate run"),
        )
    ]
    assert {*map(frozenset, imported_by(*refused).values())} <= {frozenset({"numpy"})}


def test_init_creates_a_model_once_and_inspect_shows_its_buckets(
    headrace: Commands,
    refused: Refused,
    valkey: str,
    tmp_path: Path,
    fresh_name: Callable[[str], str],
) -> None:
    name = fresh_name("cli")
    spec = tmp_path / "model.toml"
    spec.write_text(path_of("demo").read_text().replace('name = "demo"', f'name = "{name}"'))
    to = ("--model", str(spec), "--redis", valkey)
    assert name in refused("pserver", "inspect", *to)
    for _ in range(2):
        made = headrace("pserver", "init", *to, "--buckets", "4")
        assert made.code == 0, made.err
        assert f"{name}: 4 buckets" in made.out
    shown = headrace("pserver", "inspect", *to)
    assert shown.code == 0, shown.err
    assert f"{name}: 4 buckets" in shown.out
    assert [line.split()[0] for line in shown.out.splitlines()[-4:]] == ["0", "1", "2", "3"]
    assert "8" in refused("pserver", "init", *to, "--buckets", "8")
    spec.write_text(spec.read_text().replace("alpha = ", "alpha = 1"))
    assert "alpha" in refused("serving", "run", *to)


_BROKEN_MODULE = """\
import torch
class Net(torch.nn.Module):
    def __init__(self, form):
        super().__init__()
        self.last = torch.nn.Linear(form.vectors * form.dimensions + 1, 1)
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
    own.write_text(_BROKEN_MODULE)
    made = run_process("pserver", "init", *to, PYTHONPATH=_path(tmp_path))
    assert made.returncode == REFUSED
    assert f"{own}:7" in made.stderr
    assert name in refused("pserver", "inspect", *to)


def test_init_creates_a_model_with_a_torch_module_without_torch(
    valkey: str, tmp_path: Path, fresh_name: Callable[[str], str]
) -> None:
    name, spec = fresh_name("cli"), tmp_path / "model.toml"
    spec.write_text(_OWN_SPEC.format(name=name))
    missing = "raise ModuleNotFoundError('No module named torch', name='torch')\n"
    (tmp_path / "torch.py").write_text(missing)
    to = ("--model", str(spec), "--redis", valkey)
    made = run_process("pserver", "init", *to, PYTHONPATH=_path(tmp_path))
    assert made.returncode == 0, made.stderr
