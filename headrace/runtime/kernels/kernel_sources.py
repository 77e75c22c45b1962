"""A digest of the source files that the machine code of a kernel is compiled from.

numba's own cache compares only the file in which a kernel is written. But a kernel also contains
the functions that it calls, the constants that it names and the fields of the named tuples that it
takes, and these are in other files. The digest covers the kernel's file and all files that it
imports, directly or not: some twenty of headrace's. It also covers the fields of the named tuples
that a kernel is called with, since their files need not be imported, the versions of Python, numpy,
numba and llvmlite, and the settings of numba that change machine code, such as `NUMBA_BOUNDSCHECK`.

A file is read when the kernels that need it are decorated, not when they compile: it may change
while the process runs. Constants of kernels never change after the import. Imports for a type
checker alone are indented, and do not count.

*Refused:* a stamp of the bytecode and the constants of a kernel, found by walking them. It compiles
less after an edit, and needs four times the code. *Refused:* a digest of all files, because a
change in any file would then compile every kernel again.
"""

import hashlib
import re
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import llvmlite  # type: ignore[import-untyped]
import numba
import numpy as np
from numba import config, types

_VERSIONS = (sys.version, np.__version__, numba.__version__, llvmlite.__version__)
_SETTINGS = ("BOUNDSCHECK", "DEBUGINFO_DEFAULT", "OPT", "LOOP_VECTORIZE", "SLP_VECTORIZE")
"""Settings of numba by environment variables that change machine code."""
_LIBRARIES = tuple(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))
_IMPORT = re.compile(rb"^(?:from|import) +([\w.]+)(?: +import +(\([^)]*\)|[^\n(]+))?", re.MULTILINE)
_NAME = re.compile(rb"\w+")


class _Source(NamedTuple):
    """The file of a module."""

    digest: bytes
    imports: tuple[tuple[str, tuple[str, ...]], ...]
    """Modules that it imports, and the names that it imports from each."""


_READ: WeakKeyDictionary[ModuleType, _Source] = WeakKeyDictionary()
"""Modules -> their files, as they were when the module was imported."""
_DIGESTS: WeakKeyDictionary[ModuleType, bytes] = WeakKeyDictionary()
"""Modules -> the digest of their files and of those that they import."""


def read_sources(module: ModuleType) -> None:
    """Read the files of a module and of those that it has imported so far, if they are not yet."""
    if module not in _READ:
        _sources_of(module)


def _sources_of(module: ModuleType) -> dict[str, bytes]:
    """Return the digests of the files of a module and of all that it imports, by module."""
    found: dict[str, bytes] = {}
    waiting = [module]
    while waiting:
        each = waiting.pop()
        if each.__name__ in found or not _is_ours(each):
            continue
        if each not in _READ:
            _READ[each] = _source_of(each)
        found[each.__name__] = _READ[each].digest
        names = (name for imported in _READ[each].imports for name in _modules_of(*imported))
        waiting += [sys.modules[name] for name in names if name in sys.modules]
    return found


def digest_of(kernel: Any, arguments: Iterable[types.Type], processor: object) -> bytes | None:
    """Return the digest of all that the machine code is compiled from.

    None: it depends on more than files, and is not kept.
    """
    module = sys.modules.get(kernel.py_func.__module__)
    if module is None or kernel.py_func.__closure__ or _has_functions(arguments):
        return None
    sources = _DIGESTS.get(module)
    if sources is None:
        found = sorted(_sources_of(module).items())
        sources = hashlib.sha256(repr(found).encode()).digest()
        if not getattr(module.__spec__, "_initializing", False):  # else more imports may follow
            _DIGESTS[module] = sources
    settings = [(name, getattr(config, name)) for name in _SETTINGS]
    around = f"{_VERSIONS} {settings} {processor} {list(_fields_of(arguments))}"
    return hashlib.sha256(sources + around.encode()).digest()


def _is_ours(module: ModuleType) -> bool:
    """Return whether a module is headrace's or of a user, not of a library."""
    file = getattr(module, "__file__", None)
    if not file or not file.endswith(".py"):
        return False
    return module.__name__.partition(".")[0] == "headrace" or not file.startswith(_LIBRARIES)


def _source_of(module: ModuleType) -> _Source:
    text = Path(module.__file__ or "").read_bytes()
    imports = tuple(
        (found[1], tuple(_NAME.findall(found[2] or b""))) for found in _IMPORT.finditer(text)
    )
    return _Source(
        hashlib.sha256(text).digest(),
        tuple((where.decode(), tuple(map(bytes.decode, names))) for where, names in imports),
    )


def _modules_of(where: str, names: tuple[str, ...]) -> Iterator[str]:
    """Yield what an import may import: the module, and modules in it."""
    yield where
    yield from (f"{where}.{name}" for name in names)


def _fields_of(kinds: Iterable[Any]) -> Iterator[tuple[str, ...]]:
    """Yield the fields of all named tuples, also of those in tuples."""
    for kind in kinds:
        if isinstance(kind, types.BaseNamedTuple):
            yield kind.instance_class.__name__, *kind.fields  # type: ignore[attr-defined]
        if isinstance(kind, types.BaseTuple):
            yield from _fields_of(kind)  # type: ignore[arg-type]


def _has_functions(kinds: Iterable[Any]) -> bool:
    return any(
        _has_functions(kind)  # type: ignore[arg-type]
        if isinstance(kind, types.BaseTuple)
        else isinstance(kind, types.Callable | types.Dispatcher)
        for kind in kinds
    )
