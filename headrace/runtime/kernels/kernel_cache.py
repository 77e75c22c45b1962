"""Compiles kernels and keeps their machine code, also where nothing can be written.

numba stores the machine code of a function beside its source, in a directory that `NUMBA_CACHE_DIR`
names, or below the home directory. If it can write none of them, it refuses to compile. A container
with a read-only root, or with a user that has no home, is exactly that. So a kernel of headrace
also accepts a directory that it can only read: the machine code that an image contains is loaded,
and a kernel that is missing there is compiled in memory, once in each process. A full disk is no
error either.

numba takes stored machine code as current if the file of the kernel has not changed, also after a
change of a function in another file that the kernel contains. headrace stores the machine code
under a digest of all files that it was compiled from (`kernel_sources`), in files that a killed
process leaves whole (`kernel_files`).

It reaches into the classes of locators and caches in `numba.core.caching`, pickles results as they
do, and listens to the events of `numba.core.event`. pyproject.toml pins the minor version of numba,
and tests/runtime/test_kernel_cache.py fails if they change. Without this module, kernels
compile with numba's own cache, wherever that can be written; an update of headrace would then need
an empty `NUMBA_CACHE_DIR`.
"""

import contextlib
import hashlib
import pickle
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from numba import njit
from numba.core.caching import CompileResultCacheImpl, FunctionCache, InTreeCacheLocator
from numba.core.compiler import CompileResult
from numba.core.event import Event, Listener, register, unregister
from numba.core.serialize import dumps
from numba.core.sigutils import normalize_signature

from headrace.runtime.kernels import kernel_files
from headrace.runtime.kernels.kernel_sources import digest_of, read_sources


class _ReadOnlyLocator(InTreeCacheLocator):
    """The directory beside the source, from which machine code is only read."""

    def ensure_cache_path(self) -> None:
        """Accept any directory."""


class _InstalledLocator(_ReadOnlyLocator):
    """The same, if the module was compiled when it was installed."""

    @classmethod
    def from_function(cls, py_func: Callable[..., Any], py_file: str) -> Any:
        """Return a locator, or None if the module has no machine code."""
        source = Path(py_file)
        compiled = (source.parent / "__pycache__").glob(f"{source.stem}.*.nbc")
        found = super().from_function(py_func, py_file)  # type: ignore[no-untyped-call]
        return found if any(compiled) else None


_NUMBAS = CompileResultCacheImpl._locator_classes  # noqa: SLF001
"""NUMBA_CACHE_DIR, beside the source, then the home directory and notebooks."""


class _KernelCacheImpl(CompileResultCacheImpl):
    """numba's own places in numba's order, the read-only ones among them."""

    _locator_classes: ClassVar = [  # type: ignore[misc]
        *_NUMBAS[:2],
        _InstalledLocator,
        *_NUMBAS[2:],
        _ReadOnlyLocator,
    ]

    def check_cachable(self, data: CompileResult) -> bool:
        """Return whether to store the machine code of a function that was just compiled."""
        if isinstance(self.locator, _ReadOnlyLocator):
            return False
        return bool(super().check_cachable(data))  # type: ignore[no-untyped-call]


class _Place(NamedTuple):
    """The file of the machine code for one signature, and the digest that it must have."""

    path: Path
    digest: bytes


class _KernelCache(FunctionCache):
    """The machine code of one kernel."""

    _impl_class = _KernelCacheImpl

    def __init__(self, dispatcher: Any) -> None:
        super().__init__(dispatcher.py_func)  # type: ignore[no-untyped-call]
        self._dispatcher = dispatcher
        if (module := sys.modules.get(dispatcher.py_func.__module__)) is not None:
            read_sources(module)  # now, because files may change while the process runs
        self._compiled: dict[Any, _Place] = {}

    def save_overload(self, sig: object, data: CompileResult) -> None:
        """Store the machine code if the disk takes it."""
        with contextlib.suppress(OSError):
            super().save_overload(sig, data)  # type: ignore[no-untyped-call]

    def flush(self) -> None:
        """Remove the machine code for all signatures."""
        for path in Path(self.cache_path).glob(f"{self._impl.filename_base}.*.nbc"):
            path.unlink(missing_ok=True)

    def _load_overload(self, sig: Any, target_context: Any) -> CompileResult | None:
        place = self._place_of(sig, target_context.codegen())
        if place is None:
            return None
        machine_code = kernel_files.read(*place)
        if machine_code is None:
            self._compiled[sig] = place
            return None
        found: CompileResult = self._impl.rebuild(target_context, pickle.loads(machine_code))  # noqa: S301 - as numba does
        return found

    def _save_overload(self, sig: Any, data: CompileResult) -> None:
        place = self._compiled.pop(sig, None)
        if place is not None and self._impl.check_cachable(data):
            self._impl.locator.ensure_cache_path()
            kernel_files.write(*place, dumps(self._impl.reduce(data)))  # type: ignore[no-untyped-call]

    def _place_of(self, sig: Any, codegen: Any) -> _Place | None:
        """Return the place for a signature on this processor; None if it is not kept."""
        arguments, returned = normalize_signature(sig)  # type: ignore[no-untyped-call]
        processor = codegen.magic_tuple()
        name = hashlib.sha256(f"{arguments} {returned} {processor}".encode()).hexdigest()[:16]
        path = Path(self.cache_path) / f"{self._impl.filename_base}.{name}.nbc"
        taken = [*arguments, returned] if returned is not None else arguments
        digest = digest_of(self._dispatcher, taken, processor)
        return None if digest is None else _Place(path, digest)


@contextlib.contextmanager
def compilations_reported(report: Callable[[int], None]) -> Iterator[None]:
    """Call `report` with the number of functions compiled in this block, after each of them.

    Functions that are inlined into kernels count too, those whose machine code is loaded do not.
    """
    counted = _CompilationCount(report)
    register("numba:compile", counted)  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        unregister("numba:compile", counted)  # type: ignore[no-untyped-call]


class _CompilationCount(Listener):
    def __init__(self, report: Callable[[int], None]) -> None:
        self._report, self._count = report, 0

    def on_start(self, _event: Event) -> None:
        """Do nothing: a function counts when its machine code is there."""

    def on_end(self, _event: Event) -> None:
        """Report one function more."""
        self._count += 1
        self._report(self._count)


def compiled_and_kept(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Return the decorator `numba.njit(cache=True, **options)`, which works read-only as well."""

    def compiled(function: Callable[..., Any]) -> Any:
        dispatcher = njit(**options)(function)
        dispatcher._cache = _KernelCache(dispatcher)  # noqa: SLF001 - as `enable_caching` does
        return dispatcher

    return compiled
