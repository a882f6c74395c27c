"""What differs between engines and versions on the wire, and how a dialect is named.

`vllm-0.32`, `vllm-0.23`, `sglang-0.5.23`, …: an engine and a version of it. Every version within an
engine's range is spoken; a bare engine name means the newest that is known.
"""

import re
from collections.abc import Callable, Sequence
from typing import Protocol

from simworker.events.sglang import SglangDialect
from simworker.events.version import Version
from simworker.events.vllm import VllmDialect
from simworker.events.wire_event import WireEvent


class Dialect(Protocol):
    """One engine version's way to say what happened."""

    @property
    def engine(self) -> str:
        """The engine's name."""

    @property
    def version(self) -> str:
        """The engine's version, as /version tells it."""

    @property
    def replays_topic(self) -> bool:
        """Whether a replayed batch has the topic among its frames."""

    @property
    def keeps_once(self) -> bool:
        """Whether the engine has no block twice in a medium, and so tells of none."""

    @property
    def opening(self) -> Sequence[WireEvent]:
        """What an engine announces when its life begins."""

    def batch(self, timestamp: float, events: Sequence[WireEvent], rank: int | None) -> bytes:
        """Return one batch's payload; `timestamp` is the wall clock's, seconds."""


class UnknownDialectError(ValueError):
    """A name that stands for no dialect; says which there are."""


_ENGINES: dict[str, Callable[[Version | None, bool], Dialect]] = {
    "vllm": VllmDialect,
    "sglang": SglangDialect,
}
_NAME = re.compile(r"([a-z]+)(?:-(\d+(?:\.\d+){1,3}))?")


def dialect_named(name: str, *, byte_hashes: bool = False) -> Dialect:
    """Return the dialect of a name. Raises UnknownDialectError."""
    match = _NAME.fullmatch(name)
    if match is None or match[1] not in _ENGINES:
        known = ", ".join(f"{engine} and {engine}-VERSION" for engine in _ENGINES)
        raise UnknownDialectError(f"{name!r} is no dialect; there are {known}")
    version = tuple(map(int, match[2].split("."))) if match[2] else None
    try:
        return _ENGINES[match[1]](version, byte_hashes)
    except ValueError as error:
        raise UnknownDialectError(str(error)) from error
