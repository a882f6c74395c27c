"""Types of the command line's values: each reads a text, or raises an error with the reason."""

import argparse
import json
from collections.abc import Callable

INT32 = (1 << 31) - 1


def whole(low: int, high: int = INT32) -> Callable[[str], int]:
    """Return a reader of whole numbers within limits."""

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
        if value < low:
            raise argparse.ArgumentTypeError(f"at least {low}, not {value}")
        if value > high:
            raise argparse.ArgumentTypeError(f"at most {high}, not {value}")
        return value

    return read


def number(high: float, *, above: bool = False) -> Callable[[str], float]:
    """Return a reader of numbers from 0, or from above 0, to a limit."""

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
        if above and not value > 0:
            raise argparse.ArgumentTypeError(f"above 0, not {text}")
        if not 0 <= value <= high:
            raise argparse.ArgumentTypeError(f"from 0 to {high:g}, not {text}")
        return value

    return read


def address(text: str) -> tuple[str, int]:
    """Read `host:port`."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not host:port")
    return host.strip("[]"), int(port)


def lora_module(text: str) -> tuple[str, str]:
    """Read `name=path`, or vLLM's JSON form."""
    if text.startswith("{"):
        try:
            module = json.loads(text)
            return str(module["name"]), str(module["path"])
        except (ValueError, KeyError):
            raise argparse.ArgumentTypeError(f"{text!r} has no name and path") from None
    name, found, path = text.partition("=")
    if not found or not name or not path:
        raise argparse.ArgumentTypeError(f"{text!r} is not name=path")
    return name, path
