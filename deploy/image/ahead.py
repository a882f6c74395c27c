"""Compiles ahead all that Numba compiles for a router, so that an image needs neither Numba nor LLVM.

Usage: python ahead.py FOLDER, with a compiler of C and C++, and the headers of Python and NumPy.

FOLDER gets two shared objects, which `indexer.compiled.jit` and `h2grpc.http2.compile` load: functions
that Python calls, each for the types that it is called with today, and functions that libnghttp2 calls.

Numba's own `pycc` writes them, with the few functions of C that compiled code needs of Numba. It knows
neither this project's options of compilation nor functions for C to call: these come from here.
"""

import sys
from pathlib import Path
from typing import Any

from llvmlite.binding import Linkage
from numba.core.compiler import Flags, compile_extra
from numba.core.compiler_lock import global_compiler_lock
from numba.core.runtime import nrtdynmod
from numba.pycc.cc import CC
from numba.pycc.compiler import ModuleCompiler


class _Module(ModuleCompiler):  # type: ignore[misc]
    """One shared object."""

    options: dict[str, dict[str, Any]]
    """Numba's options of each function that Python calls."""
    callbacks: dict[str, Any]
    """The functions that C calls."""

    def _cull_exports(self) -> Any:
        """Compile all, and choose which symbols the shared object shows, as `_ModuleCompiler` does."""
        self.exported_function_types, self.function_environments = {}, {}
        self.environment_gvs, self.extra_environments = {}, {}
        library = self.context.codegen().create_library(self.module_name)
        library.add_ir_module(nrtdynmod.create_nrt_module(self.context)[0])
        for entry in self.export_entries:
            made = self._compiled(
                library, entry.function, entry.signature, self.options[entry.symbol]
            )
            made.library.get_function(made.fndesc.llvm_func_name).linkage = "internal"
            wrapper = made.library.get_function(made.fndesc.llvm_cpython_wrapper_name)
            wrapper.name, wrapper.linkage = self._mangle_method_symbol(entry.symbol), "external"
            self.exported_function_types[entry] = made.target_context.call_conv.get_function_type(
                made.fndesc.restype, made.fndesc.argtypes
            )
            self.function_environments[entry] = made.environment
            self.environment_gvs[entry] = made.fndesc.env_name
        for name, callback in self.callbacks.items():
            made = self._compiled(library, callback._pyfunc, callback._sig, None)  # noqa: SLF001
            wrapper = made.library.get_function(made.fndesc.llvm_cfunc_wrapper_name)
            wrapper.name, wrapper.linkage = name, "external"
            self.dll_exports.append(name)
        module = library.create_ir_module("wrapper")
        self._emit_python_wrapper(module)
        library.add_ir_module(module)
        library.finalize()
        for function in library.get_defined_functions():
            if function.name not in self.dll_exports:
                is_local = function.linkage in {Linkage.private, Linkage.internal}
                function.visibility = "default" if is_local else "hidden"
        return library

    def _compiled(
        self, library: Any, function: Any, signature: Any, options: dict[str, Any] | None
    ) -> Any:
        """Compile a function with the options that Numba has for it; without options, for C to call."""
        flags = Flags()
        flags.no_compile = True
        flags.error_model = "numpy"
        flags.no_cpython_wrapper = options is None
        flags.no_cfunc_wrapper = options is not None
        flags.nrt = options is None or options.get("_nrt", True)
        flags.release_gil = options is not None and options["nogil"]
        flags.no_rewrites = options is not None
        return compile_extra(
            self.typing_context,
            self.context,
            function,
            signature.args,
            signature.return_type,
            flags,
            locals={},
            library=library,
        )


class _Object(CC):  # type: ignore[misc]
    """Compiles and links a shared object for any processor of this machine's architecture."""

    def __init__(
        self, name: str, folder: Path, functions: dict[str, Any], callbacks: dict[str, Any]
    ) -> None:
        super().__init__(name, source_module=__name__)
        self.output_dir = str(folder)
        self.target_cpu = "generic"
        self._functions, self._callbacks = functions, callbacks
        for symbol, function in functions.items():
            self.export(symbol, function.nopython_signatures[0])(function.py_func)

    @global_compiler_lock  # type: ignore[untyped-decorator]
    def _compile_object_files(self, build_dir: str) -> tuple[list[str], list[str]]:
        made = _Module(self._export_entries, self.name, use_nrt=True, cpu_name=self.target_cpu)
        made.external_init_function = self._init_function
        made.options = {name: one.targetoptions for name, one in self._functions.items()}
        made.callbacks = self._callbacks
        path = str(Path(build_dir) / f"{self.name}.o")
        made.write_native_object(path, wrap=True)
        return [path], made.dll_exports


def main(folder: Path) -> None:
    """Write both shared objects into a folder."""
    import warmpath.h2grpc.http2.callbacks  # noqa: PLC0415
    import warmpath.router.pick.compiled  # noqa: F401, PLC0415
    from warmpath.h2grpc.http2 import compile as http2  # noqa: PLC0415
    from warmpath.indexer.compiled import jit  # noqa: PLC0415
    from warmpath.indexer.embedded import embedded_index  # noqa: PLC0415

    # This calls each function, so that Numba knows its types.
    embedded_index(1 << 24)
    _Object(jit.AHEAD_NAME, folder, jit.FUNCTIONS, {}).compile()
    _Object(http2.AHEAD_NAME, folder, {}, http2.CALLBACKS).compile()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
