"""A setting, declared once: its default, help, unit, bounds and environment variable.

A setting is a field of a dataclass, or a parameter of a command. `deploy.cli.commands` makes the
options of the command line from either, and reads the variables. `deploy.options` has the
settings that several commands share; the file of a command has the others.
"""

from collections.abc import Callable
from dataclasses import MISSING, Field, dataclass, field
from typing import Any

_KEY = "setting"


@dataclass(frozen=True, slots=True)
class Setting:
    """The text that users read about a setting, and its limits."""

    help: str
    """Empty: the docstring below the field."""
    env: str = ""
    """Environment variable; empty: none."""
    metavar: str = ""
    """Word for the value, such as FILE; empty: one for the type."""
    least: float | None = None
    most: float | None = None
    flag: str = ""
    """Flag on the command line; empty: the name of the field."""
    argument: bool = False
    """Whether the value is given by its position, without a flag."""
    check: Callable[[Any], Any] | None = None
    """Returns the value, or raises an error that says what was expected."""
    hidden: bool = False


def setting(default: Any = MISSING, /, help: str = "", **facts: Any) -> Any:  # noqa: A002
    """Return the default of a field or parameter that is a setting; without one, it is required.

    facts: see Setting.
    """
    return field(default=default, metadata={_KEY: Setting(help, **facts)})


def argument(default: Any = MISSING, /, help: str = "", **facts: Any) -> Any:  # noqa: A002
    """Return the default of a setting that is given by its position."""
    return setting(default, help, argument=True, **facts)


def same(declared: Any, *default: Any) -> Any:
    """Return a setting that is declared elsewhere, with another default if one is given."""
    assert isinstance(declared, Field)
    [chosen] = default or [declared.default]
    return field(default=chosen, metadata=declared.metadata)


def setting_of(declared: Any) -> Setting | None:
    """Return the setting of a field or of the default of a parameter; else None."""
    found = declared.metadata.get(_KEY) if isinstance(declared, Field) else None
    assert found is None or isinstance(found, Setting)
    return found
