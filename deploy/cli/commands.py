"""Makes commands of functions: each setting in a signature becomes an option or an argument.

A parameter is a setting (`headrace.runtime.settings`), or a dataclass. The settings among its
fields become options, with the docstring below the field as the help text, and its other fields
keep their defaults. A flag overrides the variable of its setting, which overrides the default.
"""

import ast
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import MISSING, fields, is_dataclass, replace
from datetime import datetime
from difflib import get_close_matches
from enum import Enum
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import UnionType
from typing import Any, NamedTuple, get_args, get_origin

import click

from headrace.deploy.options import PREFIX_VARIABLE, TOPICS_PREFIX, SpecFile
from headrace.runtime.settings import Setting, setting_of

_CONNECTIONS = frozenset({"kafka", "redis", "store"})
"""A command with one of these settings has the prefix of its environment, too."""
_PREFIX = "topics_prefix"
_WORDS = {int: "N", float: "NUMBER", Path: "PATH", datetime: "TIME"}
_EXPECTED = {int: "a whole number", float: "a number", datetime: "a time such as 2026-11-20T18:30"}


class Declared(NamedTuple):
    """A setting of a command, with the name, type and default that its declaration gives it."""

    name: str
    kind: type
    """Type of one value."""
    several: bool
    default: Any
    """MISSING: a value is required."""
    setting: Setting

    @property
    def word(self) -> str:
        """The word for a value in help texts."""
        if issubclass(self.kind, Enum):
            return "|".join(str(each.value) for each in self.kind)
        return self.setting.metavar or _WORDS.get(self.kind, "TEXT")

    @property
    def bounds(self) -> str:
        """The bounds of a number in words; empty without bounds."""
        least, most = self.setting.least, self.setting.most
        if least is None:
            return ""
        return f"at least {least:g}" if most is None else f"{least:g} to {most:g}"


class _Value(click.ParamType):
    """Reads a value, and says which ones are expected."""

    name = "value"

    def __init__(self, declared: Declared) -> None:
        self._declared = declared
        if declared.kind in (Path, SpecFile):
            self.envvar_list_splitter = os.pathsep  # type: ignore[misc]

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        kind, setting = self._declared.kind, self._declared.setting
        if not isinstance(value, str) or kind is str:
            return value
        if kind is SpecFile:
            return SpecFile.read(value)
        read: Any = None
        try:
            read = datetime.fromisoformat(value) if kind is datetime else kind(value)
            fits = (setting.least is None or read >= setting.least) and (
                setting.most is None or read <= setting.most
            )
        except ValueError:
            fits = False
        if not fits:
            self.fail(f"expected {self._expected()}, got {value!r}", param, ctx)
        return read

    def _expected(self) -> str:
        kind, bounds = self._declared.kind, self._declared.bounds
        if issubclass(kind, Enum):
            return f"one of {', '.join(str(each.value) for each in kind)}"
        words = _EXPECTED.get(kind, f"a {kind.__name__}")
        if not bounds:
            return words
        return f"{words} of {bounds}" if bounds.startswith("at") else f"{words} from {bounds}"


class SettingOption(click.Option):
    """An option made of a setting."""

    def __init__(self, declared: Declared) -> None:
        self.declared, setting = declared, declared.setting
        flag = setting.flag or f"--{declared.name.replace('_', '-')}"
        switch = declared.kind is bool
        if switch and declared.default is True:
            flag = f"{flag}/--no-{flag[2:]}"
        super().__init__(
            [declared.name, flag],
            type=bool if switch else _Value(declared),
            is_flag=switch or None,
            multiple=declared.several,
            metavar=None if switch else declared.word,
            help=setting.help,
            hidden=setting.hidden,
            show_envvar=True,
            show_default=declared.default not in (MISSING, None, "", ()),
            **_given(declared),
        )

    def get_help_extra(self, ctx: click.Context) -> Any:
        """Return what help texts say in brackets, with the bounds."""
        extra = super().get_help_extra(ctx)
        if self.declared.bounds:
            extra["range"] = self.declared.bounds
        return extra


class SettingArgument(click.Argument):
    """An argument made of a setting."""

    def __init__(self, declared: Declared) -> None:
        self.declared = declared
        super().__init__(
            [declared.name],
            type=_Value(declared),
            nargs=-1 if declared.several else 1,
            metavar=declared.setting.metavar or None,
            **_given(declared),
        )

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Return the line of help that click gives options only."""
        facts = [f"env var: {self.envvar}"] * bool(self.envvar) + ["required"] * self.required
        more = f"  [{'; '.join(facts)}]" if facts else ""
        return self.make_metavar(ctx), f"{self.declared.setting.help}{more}"


def _given(declared: Declared) -> dict[str, Any]:
    """Return what an option and an argument have in common."""
    setting, default, check = declared.setting, declared.default, declared.setting.check

    def taken(_ctx: click.Context, _param: click.Parameter, value: Any) -> Any:
        if declared.several:
            several = tuple if isinstance(default, tuple) else list
            value = default if not value else several(value)
        return value if check is None else check(value)

    return {
        "required": default is MISSING,
        "envvar": setting.env or None,
        "callback": taken,
        **({} if default in (MISSING, None) else {"default": default}),
    }


class Command(click.Command):
    """A function as a command."""

    def __init__(self, function: Callable[..., None]) -> None:
        name = function.__name__.rstrip("_").replace("_", "-")
        shown, call = _settings_of(function)
        super().__init__(name, callback=call, params=shown, help=inspect.getdoc(function))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the arguments, then the options."""
        rows = [
            record
            for each in self.params
            if isinstance(each, SettingArgument) and (record := each.get_help_record(ctx))
        ]
        if rows:
            with formatter.section("Arguments"):
                formatter.write_dl(rows)
        with formatter.section("Options"):
            formatter.write_dl(
                [
                    record
                    for each in self.get_params(ctx)
                    if not isinstance(each, SettingArgument)
                    and (record := each.get_help_record(ctx))
                ]
            )


class Group(click.Group):
    """Commands in the order in which they are declared."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write each command with its whole first sentence, which click would cut at the width."""
        rows = [(name, _first_sentence(each.help or "")) for name, each in self.commands.items()]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Return the names of the commands."""
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the named command. An unknown name is refused with the names that are like it."""
        name = args[0]
        if name not in self.commands and not ctx.resilient_parsing and (like := self._like(name)):
            ctx.fail(f"No such command {name!r}. Did you mean {' or '.join(like)}?")
        return super().resolve_command(ctx, args)

    def _like(self, name: str) -> list[str]:
        """Return the commands with a like name, and those of this name in the groups below."""
        below = [
            f"{group} {name}"
            for group, each in self.commands.items()
            if isinstance(each, Group) and name in each.commands
        ]
        return below + get_close_matches(name, self.commands, 2)


def _first_sentence(text: str) -> str:
    """Return the first sentence of a help text, on one line."""
    return " ".join(text.split()).split(". ")[0].rstrip(".") + "."


def group(
    name: str,
    help: str,  # noqa: A002
    *members: "Callable[..., None] | click.Command",
    every: Callable[..., None] | None = None,
) -> Group:
    """Return a group of commands. every: is called with its own settings before each of them."""
    shown, call = _settings_of(every) if every is not None else ([], None)
    grouped = Group(
        name,
        help=help,
        no_args_is_help=True,
        params=shown,
        callback=call,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    for each in members:
        grouped.add_command(each if isinstance(each, click.Command) else Command(each))
    return grouped


def _settings_of(function: Callable[..., None]) -> tuple[list[click.Parameter], Callable[..., Any]]:
    """Return the parameters of a command, and a function that calls it with their values."""
    owners: dict[str, tuple[type, tuple[str, ...]]] = {}
    found: list[Declared] = []
    for each in inspect.signature(function, eval_str=True).parameters.values():
        setting = setting_of(each.default)
        if setting is not None:
            found.append(_declared(each.name, each.annotation, each.default.default, setting))
            continue
        made_of: type = each.annotation
        assert is_dataclass(made_of), f"{function.__name__}: expected a setting, got {each.name}"
        below = list(_fields_of(made_of))
        owners[each.name] = made_of, tuple(one.name for one in below)
        found += below
    names = {each.name for each in found}
    prefixed = _PREFIX not in names and bool(_CONNECTIONS & names)
    if prefixed:
        declared = setting_of(TOPICS_PREFIX)
        assert declared is not None
        found.append(Declared(_PREFIX, str, False, "", declared))

    def call(**values: Any) -> Any:
        with _environment(values.pop(_PREFIX) if prefixed else None):
            for name, (made_of, below) in owners.items():
                values[name] = made_of(**{one: values.pop(one) for one in below})
            return function(**values)

    return [
        SettingArgument(each) if each.setting.argument else SettingOption(each) for each in found
    ], call


def _fields_of(group_of: type) -> Iterator[Declared]:
    """Yield the settings among the fields of a dataclass."""
    module, helps = vars(sys.modules[group_of.__module__]), _docstrings_of(group_of)
    for each in fields(group_of):
        setting = setting_of(each)
        if setting is not None:
            kind = eval(each.type, module) if isinstance(each.type, str) else each.type  # noqa: S307
            setting = replace(setting, help=setting.help or helps.get(each.name, ""))
            yield _declared(each.name, kind, each.default, setting)


def _docstrings_of(group_of: type) -> dict[str, str]:
    """Return the docstring below each field of a class, on one line."""
    return {
        field.target.id: " ".join(below.value.value.split())
        for field, below in pairwise(_classes_in(group_of.__module__)[group_of.__name__])
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
        if isinstance(below.value.value, str)
    }


@cache
def _classes_in(module: str) -> dict[str, list[ast.stmt]]:
    """Return the body of each class of a module, which is parsed once for all of them."""
    source = inspect.getsource(sys.modules[module])
    return {
        each.name: each.body for each in ast.parse(source).body if isinstance(each, ast.ClassDef)
    }


def _declared(name: str, kind: Any, default: Any, setting: Setting) -> Declared:
    """Return a setting with the type of one value: `list[Path] | None` has several paths."""
    if isinstance(kind, UnionType):
        [kind] = [each for each in get_args(kind) if each is not type(None)]
    several = get_origin(kind) in (list, tuple)
    return Declared(name, get_args(kind)[0] if several else kind, several, default, setting)


@contextmanager
def _environment(prefix: str | None) -> Iterator[None]:
    """Set the prefix for `deploy.connections` and child processes; None: leave it.

    All connections of a process are those of one environment.
    """
    before = os.environ.get(PREFIX_VARIABLE)
    if prefix is not None:
        os.environ[PREFIX_VARIABLE] = prefix
    try:
        yield
    finally:
        if prefix is not None:
            os.environ.pop(PREFIX_VARIABLE)
            os.environ.update({} if before is None else {PREFIX_VARIABLE: before})
