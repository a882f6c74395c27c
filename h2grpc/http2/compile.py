"""Compiles functions with Numba for libnghttp2 to call.

Compiled code is kept where Numba's setting CACHE_DIR says, or else beside this file, in a folder named
by a hash of all source files: Numba looks at one file alone, and constants come from its neighbours.
"""

import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import numba

Function = TypeVar("Function", bound=Callable[..., object])

HERE = Path(__file__).parent
_settings: Any = numba.config
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
    found = _kept(lambda cache: numba.njit(cache=cache, **_INLINED)(function))
    return cast("Function", found)


def callback(signature: Any) -> Callable[[Callable[..., Any]], Any]:
    """Compile a function for C to call; its attribute `address` is where C finds it."""
    return lambda function: _kept(
        lambda cache: numba.cfunc(signature, cache=cache, error_model="numpy")(function)
    )


def _kept(compiled: Callable[[bool], Any]) -> Any:
    """Return the compiled function, kept on disk if there is a folder that can be written."""
    before = _settings.CACHE_DIR
    try:
        _settings.CACHE_DIR = before or _folder()
        return compiled(True)
    except RuntimeError:
        return compiled(False)
    finally:
        _settings.CACHE_DIR = before


@cache
def _folder() -> str:
    digest = hashlib.blake2b(numba.__version__.encode(), digest_size=8)
    for path in sorted(HERE.glob("*.py")):
        digest.update(path.read_bytes())
    return str(HERE / "__pycache__" / digest.hexdigest())
