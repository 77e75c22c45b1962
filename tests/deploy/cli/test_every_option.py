"""The laws of all options: what each says, reads and refuses, whatever its command."""

import re
from collections import defaultdict
from dataclasses import MISSING
from datetime import datetime
from enum import Enum
from pathlib import Path

import click
import pytest

from headrace.deploy.cli.commands import SettingArgument, SettingOption
from headrace.deploy.cli.main import app
from headrace.deploy.options import SpecFile
from tests.deploy.in_process import commands

ROOT = Path(__file__).parents[3]
SPEC = str(ROOT / "examples" / "news_site" / "site.toml")
WITHOUT_OPTION = {
    # secrets, and what every command reads
    *(f"HEADRACE_REDIS_{each}" for each in ("USER", "PASSWORD", "PASSWORD_FILE")),
    *(f"HEADRACE_{each}_TOKENS" for each in ("COLLECT", "SERVING", "SERVING_ADMIN")),
    *("HEADRACE_LOG_FORMAT", "HEADRACE_LOG_LEVEL"),
    # of the Compose file, and of tests
    *(f"HEADRACE_{each}_PORT" for each in ("SERVER", "COLLECTOR", "GRAFANA")),
    *("HEADRACE_IMAGE", "HEADRACE_MODEL_FILE", "HEADRACE_SPARK_PYTHON"),
}
WITHOUT_VARIABLE = {
    # another meaning under the same flag
    "--alias": {"ingest replay"},
    "--from": {"export", "pserver rebuild"},
    "--name": {"suggest"},
    "--snapshot": {"export", "pserver restore", "pserver snapshots"},
    "--to": {"fit", "export", "experiment run"},
    "--workers": {"fit", "experiment run"},
    # a new number, or the one of a snapshot, and not the number of the fleet
    "--buckets": {"pserver restore", "pserver reshard"},
    "--partitions": {"topics grow"},
    # of no fleet
    "--model": {"warm"},
}

Parameter = SettingOption | SettingArgument


COMMANDS = dict(commands())
PARAMETERS = [
    (name, each)
    for name, command in COMMANDS.items()
    for each in command.params
    if isinstance(each, SettingOption | SettingArgument)
]


def each_parameter(chosen: list[tuple[str, Parameter]]) -> pytest.MarkDecorator:
    names = [f"{name} {each.name}" for name, each in chosen]
    return pytest.mark.parametrize(("command", "option"), chosen, ids=names)


def flag(option: Parameter) -> str:
    return max(option.opts, key=len) if isinstance(option, SettingOption) else ""


def another(option: Parameter) -> str:
    """Return a valid value that is not the default, as text."""
    declared = option.declared
    if declared.kind is SpecFile:
        return SPEC
    if declared.kind is bool:
        return "1"
    if declared.kind in (int, float):
        low, high = declared.setting.least or 0, declared.setting.most
        value = low + (1 if high is None or high > 1 + low else 0.5)
        return f"{value + 1 if value == declared.default else value:g}"
    if declared.kind is datetime:
        return "2026-11-20"
    if issubclass(declared.kind, Enum):
        return next(str(each.value) for each in declared.kind if each is not declared.default)
    return "a=b"


def given(option: Parameter, text: str) -> list[str]:
    if isinstance(option, SettingArgument):
        return [text]
    return [flag(option)] if option.is_flag else [flag(option), text]


def required(command: click.Command, but: str) -> list[str]:
    return [
        word
        for each in command.params
        if isinstance(each, SettingOption | SettingArgument)
        if each.required and each.name != but
        for word in given(each, another(each))
    ]


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for _, each in PARAMETERS:
        if each.envvar:
            monkeypatch.delenv(str(each.envvar), raising=False)


@each_parameter(PARAMETERS)
def test_help_names_an_option_with_its_variable_default_and_bounds(
    command: str, option: Parameter
) -> None:
    if isinstance(option, SettingOption) and option.hidden:
        return
    record = option.get_help_record(click.Context(COMMANDS[command], info_name=command))
    assert record is not None
    said, declared = record[1], option.declared
    assert declared.setting.help.rstrip().endswith(".")
    assert not declared.setting.env or f"env var: {declared.setting.env}" in said
    assert declared.default is not MISSING or "required" in said
    assert declared.bounds in said
    if isinstance(option, SettingOption) and not option.is_flag:
        shown = declared.default in (MISSING, None, "", []) or "default: " in said
        assert shown, said


@each_parameter([(name, each) for name, each in PARAMETERS if each.envvar])
def test_a_command_has_the_same_value_from_a_variable_as_from_the_command_line(
    monkeypatch: pytest.MonkeyPatch, command: str, option: Parameter
) -> None:
    text, common = another(option), required(COMMANDS[command], str(option.name))

    def value(*words: str) -> object:
        return COMMANDS[command].make_context(command, [*common, *words]).params[str(option.name)]

    by_flag = value(*given(option, text))
    monkeypatch.setenv(str(option.envvar), text)
    assert value() == by_flag
    monkeypatch.delenv(str(option.envvar))
    if not option.required:
        assert value() != by_flag


@each_parameter(
    [
        (name, each)
        for name, each in PARAMETERS
        if each.declared.kind in (int, float, datetime) or issubclass(each.declared.kind, Enum)
    ]
)
def test_an_option_refuses_other_values_and_says_which_it_expects(
    command: str, option: Parameter
) -> None:
    declared, common = option.declared, required(COMMANDS[command], str(option.name))
    least, most = declared.setting.least, declared.setting.most
    odd = ["odd", *(str(least - 1) for _ in [least] if least is not None)]
    odd += [str(most + 1) for _ in [most] if most is not None]
    for text in odd:
        with pytest.raises(click.BadParameter) as refused:
            COMMANDS[command].make_context(command, [*common, *given(option, text)])
        said = refused.value.format_message()
        assert flag(option) in said
        assert declared.setting.env in said
        assert f", got {text!r}" in said
        assert "expected a" in said or "expected one of" in said
        for bound in (least, most):
            assert bound is None or f"{bound:g}" in said


def test_a_flag_with_a_variable_has_one_in_every_command() -> None:
    found: dict[str, dict[bool, set[str]]] = defaultdict(lambda: {True: set(), False: set()})
    for name, option in PARAMETERS:
        if isinstance(option, SettingOption):
            found[flag(option)][bool(option.envvar)].add(name)
    lacking = {name: each[False] for name, each in found.items() if each[True] and each[False]}
    assert lacking == WITHOUT_VARIABLE


def test_every_command_that_connects_has_a_topics_prefix() -> None:
    flags = {
        name: {flag(each) for each in command.params if isinstance(each, SettingOption)}
        for name, command in COMMANDS.items()
    }
    connecting = {name for name, each in flags.items() if each & {"--kafka", "--redis", "--store"}}
    assert len(connecting) > 30
    assert [name for name in connecting if "--topics-prefix" not in flags[name]] == []


def test_pages_and_deployments_name_only_variables_that_a_command_reads() -> None:
    read = {str(option.envvar) for _, option in PARAMETERS if option.envvar} | WITHOUT_OPTION
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "docs").glob("guides/*")]
    deployed = [*(ROOT / "deploy/chart").rglob("*.*"), ROOT / "deploy/compose/compose.yaml"]
    for path in (*pages, *deployed, ROOT / "deploy/image/Containerfile"):
        assert set(re.findall(r"HEADRACE_[A-Z_]*[A-Z]", path.read_text())) <= read, path


def test_a_list_of_commands_cuts_no_sentence_off() -> None:
    with click.Context(app, terminal_width=80) as context:
        shown = " ".join(app.get_help(context).split())
    assert "..." not in shown.partition("Commands:")[2]
    for name, command in app.commands.items():
        assert (
            f"{name} {' '.join((command.help or '').split()).split('. ')[0].rstrip('.')}." in shown
        )
