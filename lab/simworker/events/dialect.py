"""Dialects: the forms that events of an engine's version have on the wire, and their names.

`vllm-0.32`, `vllm-0.23`, `sglang-0.5.23`, …: an engine and a version of it. The versions from
`OLDEST` to `NEWEST` in an engine's module are known, except SGLang 0.5.18 and 0.5.19; an engine's name
without a version means the newest.
"""

import re
from collections.abc import Callable

from warmpath.lab.simworker.events.sglang import SglangDialect
from warmpath.lab.simworker.events.vllm import VllmDialect
from warmpath.lab.simworker.events.wire_event import Version

Dialect = VllmDialect | SglangDialect


class UnknownDialectError(ValueError):
    """A dialect's engine or version is unknown, or lacks hashes as bytes; the message says which."""


_ENGINES: dict[str, Callable[[Version | None, bool], Dialect]] = {
    "vllm": VllmDialect,
    "sglang": SglangDialect,
}
_NAME = re.compile(r"([a-z]+)(?:-(\d+(?:\.\d+){1,3}))?")


def dialect_named(name: str, *, byte_hashes: bool = False) -> Dialect:
    """Return the dialect of a name; `byte_hashes`: whole digests. Raises UnknownDialectError."""
    match = _NAME.fullmatch(name)
    if match is None or match[1] not in _ENGINES:
        known = ", ".join(f"{engine} and {engine}-VERSION" for engine in _ENGINES)
        raise UnknownDialectError(f"{name!r} is not a dialect; the dialects are {known}")
    version = tuple(map(int, match[2].split("."))) if match[2] else None
    try:
        return _ENGINES[match[1]](version, byte_hashes)
    except ValueError as error:
        raise UnknownDialectError(str(error)) from error
