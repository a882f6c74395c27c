"""Functions that Numba merges into each compiled function that calls them.

Numba optimises each function, translates it to machine code and wraps it for Python; then it does the
former two again in each caller, and their callers. A merged function is only made ready for its callers.
"""

from collections.abc import Callable
from typing import Any

import numba
from numba.core import codegen, compiler, compiler_machinery, typed_passes, types

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
