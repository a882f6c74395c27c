"""Imports SGLang's modules where there is no GPU: those that are no part of a prefix cache become inert.

A module of `INERT` is found here instead of in a package, and every name in it is `Nothing`: it can be
called, subclassed and looked into, and does nothing.
"""

import importlib
import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Iterator, Sequence
from typing import Any

INERT = (
    # They need a GPU, or are a server's: no part of a prefix cache.
    "triton", "sgl_kernel", "sglang.kernels", "sglang.srt.configs", "sglang.srt.constrained",
    "sglang.srt.function_call", "sglang.srt.layers", "sglang.srt.managers",
    "sglang.srt.model_executor", "sglang.srt.parser",
    "sglang.srt.utils.hf_transformers_patches",
    # They are imported beside a prefix cache and take no part in it.
    "IPython", "PIL", "aiohttp", "fastapi", "huggingface_hub", "openai", "partial_json_parser",
    "pybase64", "requests", "safetensors", "starlette", "torchaudio", "torchvision", "transformers",
)  # fmt: skip


class _AnyAttribute(type):
    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Nothing


class Nothing(metaclass=_AnyAttribute):
    """Takes everything, and is nothing."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __init_subclass__(cls, **_: Any) -> None:
        pass

    def __call__(self, *args: Any, **options: Any) -> Any:
        # A decorator leaves what it decorates as it is.
        return args[0] if len(args) == 1 and callable(args[0]) and not options else self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Nothing()

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __getitem__(self, _: Any) -> "Nothing":
        return self

    def __class_getitem__(cls, _: Any) -> type["Nothing"]:
        return cls

    def __or__(self, _: Any) -> "Nothing":
        return self

    __ror__ = __or__

    @classmethod
    def __get_pydantic_core_schema__(cls, *_: Any) -> dict[str, str]:
        return {"type": "any"}


class StandInModule(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Nothing if name[:1].isupper() else Nothing()


class StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds every module at or below `roots`."""

    def __init__(self, roots: Sequence[str]) -> None:
        self.roots = set(roots)

    def find_spec(self, name: str, *_: Any) -> importlib.machinery.ModuleSpec | None:
        if any(name == root or name.startswith(f"{root}.") for root in self.roots):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = StandInModule(spec.name)
        module.__path__ = []
        module.__version__ = "0"
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def load(names: Sequence[str]) -> dict[str, Any]:
    """Import `module:attribute` of each name, and return the attributes; None for one that is not there.

    A name that begins with `?` may lack its module too.
    """
    sys.meta_path.insert(0, StandIns(INERT))
    return {name.partition(":")[2]: _attribute(name) for name in names}


def _attribute(name: str) -> Any:
    module, _, attribute = name.removeprefix("?").partition(":")
    try:
        return getattr(importlib.import_module(module), attribute, None)
    except ModuleNotFoundError as error:
        if name.startswith("?") and f"{module}.".startswith(f"{error.name}."):
            return None
        raise
