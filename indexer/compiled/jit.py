"""Compiles functions with Numba, and chooses where compiled code is kept.

Numba keeps compiled code beside each source file and looks at that file alone, so a change in one
module would leave its callers' code stale. Here the folder's name is a hash of all source files.

Where an image brings the functions compiled ahead (`deploy/image/ahead.py`), in a module whose name has
that hash, Numba is not imported.
"""

import atexit
import hashlib
import os
import platform
import shutil
import tempfile
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar, cast

import numpy as np

Function = TypeVar("Function", bound=Callable[..., object])

int64 = cast("Callable[[Any], int]", np.int64)
"""Makes a signed word of a number in compiled functions; NumPy's stubs say that it is no `int`."""

HERE = Path(__file__).parent
SOURCES = (HERE, HERE.parents[1] / "h2grpc" / "http2")
"""The folders of what is compiled, and of the constants that compiled code takes from its neighbours."""


def digest_of(*sources: Path) -> str:
    """Return a hash of files, and of all modules in folders."""
    digest = hashlib.blake2b(platform.machine().encode(), digest_size=8)
    digest.update(os.environ.get("NUMBA_BOUNDSCHECK", "").encode())
    for source in sources:
        for path in sorted(source.rglob("*.py")) if source.is_dir() else (source,):
            digest.update(path.read_bytes())
    return digest.hexdigest()


_DIGEST = digest_of(*SOURCES)
AHEAD_NAME = f"warmpath_index_{_DIGEST}"


def _ahead() -> ModuleType | None:
    try:
        return import_module(AHEAD_NAME)
    except ModuleNotFoundError:
        return None


AHEAD = _ahead()
"""The functions that were compiled ahead, if there are any. They check less than Numba's: an array of
another shape or type than the function is compiled for is undefined behaviour."""
_numba: Any = import_module("numba") if AHEAD is None else None
FUNCTIONS: dict[str, Any] = {}
"""The functions of Numba that Python calls, by their names in `AHEAD`."""

_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "no_rewrites": True}
_KEPT: dict[str, Any] = {**_OPTIONS, "no_cfunc_wrapper": True}
"""Options that save the compiler's time: rewrites find nothing in these functions, and wrappers for C
are for functions that are passed as arguments."""
_BORROWED: dict[str, Any] = {"_nrt": False}
"""References to arrays are not counted: if they were, each array taken out of a tuple would cost two
atomic operations, and following events would take three times as long. A function
with this option cannot make arrays."""


def compiled(function: Function) -> Function:
    """Compile a function: no interpreter lock, no bounds checks, kept on disk; it allocates nothing."""
    return _for_python(
        function, lambda: _numba.njit(cache=_IS_KEPT, **_KEPT, **_BORROWED)(function)
    )


def inner(function: Function) -> Function:
    """Compile a function for compiled functions alone to call."""
    return _merged(function, {**_OPTIONS, **_BORROWED})


def inlined(function: Function) -> Function:
    """Compile an `inner` function into its callers, as a call with a tuple of arrays takes long."""
    return _merged(function, {**_OPTIONS, **_BORROWED, "forceinline": True})


def _merged(function: Function, options: dict[str, Any]) -> Function:
    if AHEAD is not None:
        return function
    from warmpath.indexer.compiled.merge import merged  # noqa: PLC0415  needs Numba

    return cast("Function", merged(function, options))


def allocating(function: Function) -> Function:
    """Compile a function that makes arrays."""
    return _for_python(function, lambda: _numba.njit(cache=_IS_KEPT, **_KEPT)(function))


def at_once(signature: str, *modules: ModuleType) -> Callable[[Function], Function]:
    """Compile a function for one signature as its module is imported; it calls functions of `modules`.

    It keeps the interpreter lock: to get that back may take longer than its microseconds.
    """
    digest = digest_of(*(Path(str(one.__file__)) for one in modules))
    options = {**_KEPT, **_BORROWED, "nogil": False}

    def compile_now(function: Function) -> Any:
        before = folder()
        try:
            if before:
                _numba.config.CACHE_DIR = str(Path(before) / digest)
            return _numba.njit(signature, cache=_IS_KEPT, **options)(function)
        finally:
            _numba.config.CACHE_DIR = before

    return lambda function: _for_python(function, lambda: compile_now(function), digest)


def intrinsic(build: Callable[..., Any]) -> Any:
    """Return a function, for compiled functions alone to call, for which `build` makes the code."""
    return import_module("numba.extending").intrinsic(build) if AHEAD is None else build


def _for_python(function: Function, make: Callable[[], Any], digest: str = "") -> Function:
    name = ".".join(filter(None, (function.__module__, function.__qualname__, digest)))
    if AHEAD is not None:
        return cast("Function", getattr(AHEAD, name))
    made = FUNCTIONS[name] = make()
    return cast("Function", made)


def _is_writable(path: Path) -> bool:
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            return True
    except OSError:
        return False


def _keep() -> tuple[bool, bool]:
    """Choose a folder for compiled code; return whether there is one, and whether it is lasting.

    On a read-only file system, compiled code that is there is copied to a private temporary folder,
    since Numba uses only folders that it can write to.
    """
    if AHEAD is not None:
        return False, False
    name = f"{_numba.__version__}-{_DIGEST}"
    settings = _numba.config
    if settings.CACHE_DIR:
        settings.CACHE_DIR = str(Path(settings.CACHE_DIR) / name)
        return True, True
    built = HERE / "__pycache__" / name
    if _is_writable(built):
        settings.CACHE_DIR = str(built)
        return True, True
    try:
        private = Path(tempfile.mkdtemp(prefix="warmpath-compiled-"))
    except OSError:
        return False, False
    atexit.register(shutil.rmtree, private, ignore_errors=True)
    if built.is_dir():
        shutil.copytree(built, private, dirs_exist_ok=True)
    settings.CACHE_DIR = str(private)
    return True, False


def folder() -> str:
    """Return the folder of compiled code; it is empty where none is kept."""
    return str(_numba.config.CACHE_DIR)


_IS_KEPT, IS_LASTING = _keep()
