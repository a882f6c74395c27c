"""The arguments of a recorded operation, checked as they are read."""

from collections.abc import Mapping
from typing import Any


class BadTraceError(ValueError):
    """The line is not a valid operation; the message names the line and the field."""


class TraceArgs:
    """One line's `args`. Its methods raise BadTraceError naming the field."""

    def __init__(self, args: Any) -> None:
        if not isinstance(args, dict):
            raise BadTraceError("args: is not an object")
        self._args: Mapping[str, Any] = args

    def __contains__(self, name: str) -> bool:
        return self._args.get(name) is not None

    def names(self) -> set[str]:
        """Return all names."""
        return set(self._args)

    def get(self, name: str, kind: type | tuple[type, ...], default: Any = None) -> Any:
        """Return a value, or `default` if it is missing or null."""
        value = self._args.get(name, default)
        if value is not None or default is not None:
            self._check(name, value, kind)
        return value

    def need(self, name: str, kind: type | tuple[type, ...]) -> Any:
        """Return a value that must be there."""
        if name not in self._args:
            raise BadTraceError(f"args.{name}: missing")
        self._check(name, self._args[name], kind)
        return self._args[name]

    def ints(self, name: str) -> list[int]:
        """Return a list of integers from 0."""
        values = self.need(name, list)
        if not all(isinstance(value, int) and value >= 0 for value in values):
            raise BadTraceError(f"args.{name}: must be a list of integers from 0")
        return list(values)

    @staticmethod
    def _check(name: str, value: Any, kind: type | tuple[type, ...]) -> None:
        if isinstance(value, bool) and kind is not bool:
            raise BadTraceError(f"args.{name}: must not be a boolean")
        if not isinstance(value, kind):
            raise BadTraceError(f"args.{name}: {type(value).__name__} is the wrong type")
