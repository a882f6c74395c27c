"""Compiles functions with Numba for libnghttp2 to call.

Compiled code is kept where Numba's setting CACHE_DIR says, or else beside this file, in a folder named
by a hash of all source files: Numba looks at one file alone, and constants come from its neighbours.

Where an image brings the functions compiled ahead (`deploy/image/ahead.py`), in a library whose name has
that hash, Numba is not imported.
"""

import ctypes as c
import hashlib
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar, cast

Function = TypeVar("Function", bound=Callable[..., object])

HERE = Path(__file__).parent


def _digest() -> str:
    digest = hashlib.blake2b(digest_size=8)
    for path in sorted(HERE.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


DIGEST = _digest()
AHEAD_NAME = f"warmpath_http2_{DIGEST}"
_spec = find_spec(AHEAD_NAME)
AHEAD = _spec.origin if _spec else None
"""The file of the library that was compiled ahead, if there is one."""
_numba: Any = import_module("numba") if AHEAD is None else None
carray: Any = _numba and _numba.carray
"""Makes an array of an address in compiled functions."""
CALLBACKS: dict[str, Any] = {}
"""The functions of Numba that libnghttp2 calls, by their names in `AHEAD`."""

_INLINED: dict[str, Any] = {
    "nogil": True,
    "error_model": "numpy",
    "forceinline": True,
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
    # References to arrays are not counted, which would cost two atomic operations for each.
    "_nrt": False,
}


def inlined(function: Function) -> Function:
    """Compile a function into its callers, as a call with a tuple of arrays takes long."""
    if AHEAD is not None:
        return function
    found = _kept(lambda cache: _numba.njit(cache=cache, **_INLINED)(function))
    return cast("Function", found)


def callback(signature: str) -> Callable[[Callable[..., Any]], int]:
    """Compile a function for C to call; return its address."""

    def address(function: Callable[..., Any]) -> int:
        name = f"warmpath{function.__name__}"
        if AHEAD is not None:
            return cast("int", c.cast(getattr(c.PyDLL(AHEAD), name), c.c_void_p).value)
        made = CALLBACKS[name] = _kept(
            lambda cache: _numba.cfunc(signature, cache=cache, error_model="numpy")(function)
        )
        return cast("int", made.address)

    return address


def external(name: str, signature: str) -> Any:
    """Return a function of a loaded library, for compiled functions alone to call."""
    if AHEAD is not None:
        return None
    arguments, result = import_module("numba.core.sigutils").normalize_signature(signature)
    return _numba.types.ExternalFunction(name, result(*arguments))


def intrinsic(build: Callable[..., Any]) -> Any:
    """Return a function, for compiled functions alone to call, for which `build` makes the code."""
    return import_module("numba.extending").intrinsic(build) if AHEAD is None else build


def _kept(compiled: Callable[[bool], Any]) -> Any:
    """Return the compiled function, kept on disk if there is a folder that can be written."""
    settings = _numba.config
    before = settings.CACHE_DIR
    try:
        settings.CACHE_DIR = before or str(HERE / "__pycache__" / f"{_numba.__version__}-{DIGEST}")
        return compiled(True)
    except RuntimeError:
        return compiled(False)
    finally:
        settings.CACHE_DIR = before
