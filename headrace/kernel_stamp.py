"""Stamps of kernels: a hash of all that the machine code of a kernel is compiled from.

numba's own cache compares only the file in which a kernel is written. But a kernel also contains
the functions that it calls, the constants that it names and the fields of the named tuples that it
takes, and these are in other files. The stamp covers them all. It follows the names of a function
to functions, constants and classes, and from there on:

- a compiled function: its bytecode, its options, and its own names, closure and defaults;
- a constant: its type and value, also of arrays and of containers;
- a named tuple: its name, its fields and their defaults;
- an intrinsic: its functions, and all functions, classes and constants of its module, because the
  module may register operators that no kernel names;
- a function with overloads (`numba.extending.overload`): the overloads.

For Python itself, numpy, numba and llvmlite, the stamp has the versions, and the settings of numba
that change machine code, such as `NUMBA_BOUNDSCHECK`. It is made from the objects in memory, not
from files: numba compiles these objects, even if the files have changed since. Overloads of a
library's functions for a type of ours are covered only beside an intrinsic.

Constants of kernels never change after the import. If one was replaced in this process all the
same, or if a kernel uses an object of an unknown kind, there is no stamp (`NoStamp`).

The module reaches into numba: `Dispatcher.targetoptions` and `locals`, `_Intrinsic._defn`, the
class of a named tuple's type, and the list of overloads in `builtin_registry`. pyproject.toml pins
the minor version of numba, and tests/ingest/runtime/test_stale_machine_code.py fails if they
change. Without this module, each update needs an empty cache.

This module is beside the parts, because `ingest` and `pserver` may not import each other.
"""

from __future__ import annotations

import enum
import hashlib
import sys
from collections import defaultdict
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import llvmlite  # type: ignore[import-untyped]
import numba
import numpy as np
from numba import config, types
from numba.core.dispatcher import Dispatcher
from numba.core.extending import _Intrinsic
from numba.core.typing.templates import builtin_registry

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_VERSIONS = (sys.version, np.__version__, numba.__version__, llvmlite.__version__)
_SETTINGS = ("BOUNDSCHECK", "DEBUGINFO_DEFAULT", "OPT", "LOOP_VECTORIZE", "SLP_VECTORIZE")
"""Settings of numba by environment variables that change machine code."""
_LIBRARIES = sys.stdlib_module_names | {"numba", "numpy", "llvmlite"}
_PLAIN = (type(None), bool, int, float, complex, str, bytes, type(...), type(NotImplemented))
_CONTAINERS = (tuple, list, dict, set, frozenset)
_DEFINED = (FunctionType, type, Dispatcher, _Intrinsic)
_CLASS_MEMBERS = (classmethod, staticmethod, property)
_ABSENT = object()
_AN_ADDRESS = " at 0x"


class NoStamp(Exception):
    """A kernel whose machine code must not be kept, because its parts are not all known."""


class _Part(NamedTuple):
    """A function, class or module, described once in a process."""

    described: object
    """Kept, so that its address stays its own."""
    text: bytes
    parts: list[Any]
    """The parts that it uses, in order."""
    names: list[str]
    """The names in the bytecode of a function."""
    named: list[object]
    """What they stood for."""


_described: dict[int, _Part] = {}


def stamp_of(kernel: Dispatcher, arguments: Iterable[types.Type], source: object) -> bytes:
    """Return the stamp of a kernel for these types of arguments. Raises NoStamp.

    source: what else the machine code depends on, such as numba's stamp of the file.
    """
    text = _Text()
    text.add((_VERSIONS, [str(getattr(config, name)) for name in _SETTINGS], source))
    text.add(kernel)
    for each in arguments:
        text.add(each)
    made = hashlib.sha256(text.joined())
    numbers: dict[int, int] = {}
    found: list[Any] = []

    def note(parts: list[Any]) -> None:
        for each in parts:
            number = numbers.setdefault(id(each), len(found))
            if number == len(found):
                found.append(each)
            made.update(b"%d " % number)

    note(text.parts)
    for each in found:  # it grows meanwhile
        part = _part_of(each)
        made.update(part.text)
        note(part.parts)
    return made.digest()


def _part_of(value: Any) -> _Part:
    part = _described.get(id(value))
    if not isinstance(value, FunctionType):
        return part or _describe(value, [], [])
    names = part.names if part else _names_in(value.__code__)
    named = list(_named_by(value, names))
    if part is None:
        return _describe(value, names, named)
    changed = [old for old, new in zip(part.named, named, strict=True) if old is not new]
    if any(old is not _ABSENT for old in changed):
        raise NoStamp(f"a global of {value.__qualname__} was replaced after its first use")
    # a name that is new was not needed before: the module was being imported
    return _describe(value, names, named) if changed else part


def _describe(value: Any, names: list[str], named: list[object]) -> _Part:
    text = _Text()
    if isinstance(value, FunctionType):
        _add_function(text, value, named)
    elif isinstance(value, Dispatcher):
        text.add((sorted(value.targetoptions.items()), sorted(value.locals.items())))
        text.add(value.py_func)
    elif isinstance(value, _Intrinsic):
        text.add(_definition_of(value))
        text.parts.append(sys.modules[value.__module__])
    elif isinstance(value, ModuleType):
        text.add_definitions(vars(value), value.__name__)
    else:
        _add_class(text, value)
    part = _described[id(value)] = _Part(value, text.joined(), text.parts, names, named)
    return part


def _named_by(function: FunctionType, names: list[str]) -> Iterator[object]:
    """Yield what names stand for in a function, or _ABSENT; some are names of attributes."""
    for name in names:
        value = function.__globals__.get(name, _ABSENT)
        yield value
        if isinstance(value, ModuleType) and not _is_of_library(value.__name__):
            yield from (getattr(value, attribute, _ABSENT) for attribute in names)


def _add_function(text: _Text, function: FunctionType, named: list[object]) -> None:
    text.lines.append(_code_text(function.__code__))
    for value in named:
        if value is not _ABSENT and not isinstance(value, ModuleType):
            text.add(value)
        else:
            text.lines.append("module" if isinstance(value, ModuleType) else "absent")
    text.add((function.__defaults__, function.__kwdefaults__))
    for cell in function.__closure__ or ():
        text.add(cell.cell_contents)
    for overload in _overloads_of(function):
        text.add(overload)


def _add_class(text: _Text, value: type) -> None:
    text.lines.append(f"{value.__module__}.{value.__qualname__}")
    if issubclass(value, tuple) and hasattr(value, "_fields"):
        text.add((value._fields, getattr(value, "_field_defaults", None)))
    elif issubclass(value, enum.Enum):
        text.add([(each.name, each.value) for each in value])
    else:
        text.add(value.__bases__)
        text.add_definitions(vars(value), value.__module__)


class _Text:
    """The description of a part: its own text, and the parts that it uses."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.parts: list[Any] = []

    def joined(self) -> bytes:
        """Return the text, with its length."""
        joined = "\n".join(self.lines).encode("utf-8", "surrogatepass")
        return b"\n%d:" % len(joined) + joined

    def add(self, value: Any) -> None:
        """Describe a value, or note it as a part of its own. Raises NoStamp."""
        kind = type(value)
        if kind in _PLAIN:
            self.lines.append(f"{kind.__name__} {value!r}")
        elif kind in _CONTAINERS:
            self._add_container(value)
        elif isinstance(value, np.ndarray | np.generic) and not value.dtype.hasobject:
            self.lines.append(f"{kind.__name__} {value.dtype!r} {value.shape} {value.strides}")
            self.lines.append(hashlib.sha256(value.tobytes()).hexdigest())
        elif isinstance(value, types.Type):
            self._add_type(value)
        elif isinstance(value, Dispatcher):
            self._add_part_or_name(value, value.py_func)
        elif isinstance(value, _Intrinsic):
            self._add_part_or_name(value, _definition_of(value))
        elif isinstance(value, FunctionType | type):
            self._add_part_or_name(value, value)
        else:
            self._add_object(value)

    def add_definitions(self, namespace: Mapping[str, Any], module: str) -> None:
        """Describe functions, classes and constants that a module or a class of it defines."""
        for name, value in sorted(namespace.items()):
            if isinstance(value, _CLASS_MEMBERS):
                functions = [getattr(value, each, None) for each in ("__func__", "fget", "fset")]
                self.add((name, functions))
            elif isinstance(value, _DEFINED):
                self.add((name, value) if value.__module__ == module else name)
            elif name[:2] != "__" and isinstance(value, (*_PLAIN, *_CONTAINERS)):
                self.add((name, value))

    def _add_part_or_name(self, value: Any, definition: Any) -> None:
        name = f"{definition.__module__}.{definition.__qualname__}"
        self.lines.append(name)
        if not _is_of_library(definition.__module__):
            self.parts.append(value)

    def _add_container(self, value: Any) -> None:
        self.lines.append(f"{type(value).__name__} {len(value)}")
        if isinstance(value, set | frozenset):
            self.lines.append(_constant_text(frozenset(value)))
        elif isinstance(value, dict):
            for item in value.items():
                self.add(item)
        else:
            for each in value:
                self.add(each)

    def _add_type(self, value: types.Type) -> None:
        if _AN_ADDRESS in str(value):
            raise NoStamp(f"expected a type with the same name in every process, got {value}")
        self.lines.append(f"{type(value).__qualname__} {value}")
        self.add(type(value))
        self.add(getattr(value, "instance_class", None))
        # the dtype of a tuple of several types is a union, whose order is not always the same
        self.add(getattr(value, "types", None) or getattr(value, "dtype", None))

    def _add_object(self, value: Any) -> None:
        kind = type(value)
        if isinstance(value, enum.Enum):
            self.add((kind, value.name, value.value))
        elif isinstance(value, MethodType) and _is_of_library(type(value.__self__).__module__):
            self.add(value.__func__)
        elif isinstance(value, BuiltinFunctionType | np.ufunc):
            self.lines.append(f"{getattr(value, '__module__', '')}.{value.__name__}")
        elif isinstance(value, np.dtype) or kind.__module__.startswith("llvmlite.ir."):
            self.lines.append(f"{kind.__qualname__} {value!s}")
        elif isinstance(value, tuple) and hasattr(value, "_fields"):
            self.add((kind, *value))
        elif hasattr(value, "__wrapped__"):
            self.add(value.__wrapped__)
        else:
            raise NoStamp(f"expected constants, functions and classes, got {value!r}")


def _definition_of(intrinsic: _Intrinsic) -> Any:
    return intrinsic._defn  # noqa: SLF001


def _is_of_library(module: str | None) -> bool:
    return module is not None and module.partition(".")[0] in _LIBRARIES


def _code_text(code: CodeType) -> str:
    """Return what a function does, without its lines."""
    counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    constants = _constant_text(code.co_consts)
    instructions = (code.co_code, code.co_exceptiontable)
    return repr((code.co_qualname, counts, names, instructions)) + constants


def _constant_text(value: object) -> str:
    if isinstance(value, CodeType):
        return _code_text(value)
    if isinstance(value, tuple):
        return f"({', '.join(map(_constant_text, value))})"
    if isinstance(value, frozenset):  # in the same order in every process
        return f"{{{', '.join(sorted(map(_constant_text, value)))}}}"
    return f"{type(value).__name__} {value!r}"


def _names_in(code: CodeType) -> list[str]:
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names.update(_names_in(constant))
    return sorted(names)


_overloads: defaultdict[int, list[FunctionType]] = defaultdict(list)
_registered = 0


def _overloads_of(function: FunctionType) -> list[FunctionType]:
    """Return the functions that numba compiles in place of a function of Python."""
    global _registered  # noqa: PLW0603
    registered: list[Any] = builtin_registry.globals
    for overloaded, kind in registered[_registered:]:
        for template in getattr(kind, "templates", ()):
            overload = getattr(template, "_overload_func", None)
            if overload is not None and not _is_of_library(overload.__module__):
                _overloads[id(overloaded)].append(overload)
    _registered = len(registered)
    return _overloads.get(id(function), [])
