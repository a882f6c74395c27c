"""Compiles functions with Numba, and chooses where compiled code is kept.

Numba keeps compiled code beside each source file and looks at that file alone, so a change in one
module would leave its callers' code stale. Here the folder's name is a hash of all source files.

Numba optimises each function, translates it to machine code and wraps it for Python; then it does the
former two again in each caller, and their callers. A merged function is only made ready for its callers.
"""

import atexit
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar, cast

import numba
import numpy as np
from numba.core import codegen, compiler, compiler_machinery, typed_passes, types
from numba.core.event import Listener

_Library: Any = codegen.JITCodeLibrary
_Lowered: Any = typed_passes.NativeLowering
_Compiler: Any = compiler.CompilerBase
_passes: Any = compiler.DefaultPassBuilder
_manager: Any = compiler_machinery.PassManager
_register: Any = compiler_machinery.register_pass


def merged(function: Callable[..., object], options: dict[str, Any]) -> Any:
    """Return a function that only compiled functions may call; to Python it raises TypeError."""
    made: Any = numba.njit(pipeline_class=_Merged, **options)(function)
    template = made.get_call_template
    # Each constant argument is of a type of its own, for which Numba would compile the function again.
    made.get_call_template = lambda args, kws: template(tuple(map(types.unliteral, args)), kws)
    return made


class _Code(_Library):  # type: ignore[misc]
    """Code with that of all callees, neither optimised together nor translated."""

    def finalize(self) -> None:
        for library in dict.fromkeys(self._linking_libraries):
            module = library._get_module_for_linking()  # noqa: SLF001
            self._final_module.link_in(module, preserve=True)
        self._finalize_dynamic_globals()
        self._finalized = True


@_register(mutates_CFG=True, analysis_only=False)
class _Lowering(_Lowered):  # type: ignore[misc]
    _name = "merged_lowering"

    def run_pass(self, state: Any) -> bool:
        state.library = _Code(state.targetctx.codegen(), state.func_id.func_qualname)
        flags = state.flags
        flags.no_compile = flags.no_cpython_wrapper = flags.no_cfunc_wrapper = True
        super().run_pass(state)
        # What Python would call: a built-in function of its own, or Numba takes two functions for one.
        entry: Any = {}.update
        state.targetctx.insert_user_function(entry, state.cr.fndesc, [state.library])
        state.cr = state.cr._replace(cfunc=entry)
        return True


class _Merged(_Compiler):  # type: ignore[misc]
    def define_pipelines(self) -> list[Any]:
        made = _manager("merged")
        for each, why in _passes.define_nopython_pipeline(self.state).passes:
            made.add_pass(_Lowering if each is _Lowered else each, why)
        made.finalize()
        return [made]


log = logging.getLogger(__name__)

Function = TypeVar("Function", bound=Callable[..., object])

int64 = cast("Callable[[Any], int]", np.int64)
"""Makes a signed word of a number in compiled functions; NumPy's stubs say that it is no `int`."""

_settings: Any = numba.config
HERE = Path(__file__).parent
SOURCES = (HERE, HERE.parents[1] / "h2grpc" / "http2")
"""The folders of what is compiled, and of the constants that compiled code takes from its neighbours."""

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
    return cast("Function", numba.njit(cache=_IS_KEPT, **_KEPT, **_BORROWED)(function))


def inner(function: Function) -> Function:
    """Compile a function for compiled functions alone to call."""
    return cast("Function", merged(function, {**_OPTIONS, **_BORROWED}))


def inlined(function: Function) -> Function:
    """Compile an `inner` function into its callers, as a call with a tuple of arrays takes long."""
    return cast("Function", merged(function, {**_OPTIONS, **_BORROWED, "forceinline": True}))


def allocating(function: Function) -> Function:
    """Compile a function that makes arrays."""
    return cast("Function", numba.njit(cache=_IS_KEPT, **_KEPT)(function))


def at_once(signature: str, *modules: ModuleType) -> Callable[[Function], Function]:
    """Compile a function for one signature as its module is imported; it calls functions of `modules`.

    It keeps the interpreter lock: to get that back may take longer than its microseconds.
    """
    folder = _settings.CACHE_DIR
    options = {**_KEPT, **_BORROWED, "nogil": False}

    def made(function: Function) -> Function:
        if folder:
            sources = (Path(str(one.__file__)) for one in modules)
            _settings.CACHE_DIR = str(Path(folder) / _digest(*sources))
        try:
            return cast("Function", numba.njit(signature, cache=_IS_KEPT, **options)(function))
        finally:
            _settings.CACHE_DIR = folder

    return made


def _digest(*sources: Path) -> str:
    """Return a hash of files, and of all modules in folders."""
    digest = hashlib.blake2b(digest_size=8)
    digest.update(f"{numba.__version__} {platform.machine()}".encode())
    digest.update(os.environ.get("NUMBA_BOUNDSCHECK", "").encode())
    for source in sources:
        for path in sorted(source.rglob("*.py")) if source.is_dir() else (source,):
            digest.update(path.read_bytes())
    return digest.hexdigest()


def _is_writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def _keep() -> tuple[bool, bool]:
    """Choose a folder for compiled code; return whether there is one, and whether it is lasting.

    On a read-only file system, compiled code that was built into an image is copied to a private
    temporary folder, since Numba uses only folders that it can write to.
    """
    digest = _digest(*SOURCES)
    if _settings.CACHE_DIR:
        _settings.CACHE_DIR = str(Path(_settings.CACHE_DIR) / digest)
        return True, True
    built = HERE / "__pycache__" / digest
    if _is_writable(built):
        _settings.CACHE_DIR = str(built)
        return True, True
    try:
        folder = Path(tempfile.mkdtemp(prefix="warmpath-compiled-"))
    except OSError:
        return False, False
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    if built.is_dir():
        shutil.copytree(built, folder, dirs_exist_ok=True)
    _settings.CACHE_DIR = str(folder)
    return True, False


_IS_KEPT, _IS_LASTING = _keep()
HELP = """
from warmpath.indexer.compiled.array_index import ArrayIndex
from warmpath.indexer.compiled.warm_up import follow_ranks
follow_ranks(ArrayIndex(1 << 20))
"""
"""The second process's program."""
HELP_SECONDS = 120.0
"""Longest wait for the second process; this one compiles what is not on disk then."""


class FirstCompilation(Listener):
    """Logs one warning, when Numba first has to compile a function that is not on disk.

    Where there is a second processor, a second process then compiles a part (`HELP`), which this process
    loads from disk later.
    """

    def __init__(self) -> None:
        self._has_begun = False
        self._helper: subprocess.Popen[bytes] | None = None

    def on_start(self, event: object) -> None:
        del event
        if not self._has_begun:
            self._has_begun = True
            log.warning(
                "compiling the index of warmpath: once, up to a minute on a slow machine; %s",
                _where_kept(),
            )
            if _IS_LASTING and sys.executable and (os.cpu_count() or 1) > 1:
                self._helper = subprocess.Popen(  # noqa: S603
                    [sys.executable, "-Pc", HELP],
                    env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )

    def on_end(self, event: object) -> None:
        pass

    def await_helper(self) -> None:
        """Wait until the second process has ended, if there is one."""
        if self._helper is not None:
            try:
                self._helper.wait(HELP_SECONDS)
            except subprocess.TimeoutExpired:
                self._helper.kill()
                self._helper.wait()


def _where_kept() -> str:
    if _IS_LASTING:
        return f"the code is kept in {_settings.CACHE_DIR}"
    return "the code is kept for this process only, unless NUMBA_CACHE_DIR names a writable folder"
