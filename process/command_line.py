"""How a command shows its help, its version and its errors.

docs/reference/commands.md explains the exit statuses.
"""

import argparse
import errno
import importlib.metadata
import inspect
import socket
import ssl
from functools import cache
from typing import Any, NoReturn

FINE, FOUND, USAGE, NO_ANSWER = 0, 1, 2, 3
"""Exit statuses of all commands: nothing found; a finding or a failure; wrong options or files; and no
answer, or an incomplete one, of the process that was asked."""

SAYS = {
    errno.EACCES: "this user may not use it",
    errno.EADDRINUSE: "another process listens there; end it, or choose another port",
    errno.EADDRNOTAVAIL: "this machine has no such address",
    errno.ECONNREFUSED: "nothing listens there",
    errno.ECONNRESET: "the connection was closed by the other side",
    errno.EEXIST: "it is there already",
    errno.EHOSTUNREACH: "there is no way to that host",
    errno.EISDIR: "it is a folder, not a file",
    errno.ENETUNREACH: "there is no way to that network",
    errno.ENOENT: "there is no such file or folder",
    errno.ENOSPC: "the disk is full",
    errno.ENOTDIR: "a part of its path is not a folder",
    errno.ETIMEDOUT: "no answer in time",
}


PLAIN_THERE = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE")
"""OpenSSL's reasons where the other side does not speak TLS."""


class Parser(argparse.ArgumentParser):
    """An argument parser that prints an error as one line, without the usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; '{self.prog} --help' shows the options\n")


class Help(argparse.HelpFormatter):
    """Formats help: adds defaults, unless they are empty, and does not wrap the lines of an example."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        said = action.help or ""
        given = action.default
        silent = given is None or given is False or given in ("", argparse.SUPPRESS) or given == []
        if silent or action.required or "default" in said:
            return action.help
        return f"{said}; %(default)s by default" if said else "%(default)s by default"

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        parts = text.split("\n\n")
        return "\n\n".join(
            part if "\n  " in part else super(Help, self)._fill_text(part, width, indent)
            for part in parts
        )


def command_parser(
    name: str, summary: str | None, example: str, *, more: str = ""
) -> argparse.ArgumentParser:
    """Return a command's parser; its help begins with `summary`, and ends with `example` and `more`."""
    epilog = f"example:\n  {example}" + (f"\n\n{more}" if more else "")
    return Parser(
        prog=f"warmpath {name}",
        description=inspect.cleandoc(summary or ""),
        formatter_class=Help,
        epilog=epilog,
    )


def in_words(error: BaseException) -> str:
    """Return an error in words for users, such as "nothing listens there" for a refused connection."""
    inner: Any = getattr(error, "os_error", None) or getattr(error, "reason", None)
    if isinstance(inner, BaseException):
        return in_words(inner)
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is refused: {error.verify_message}"
    if isinstance(error, ssl.SSLError) and error.reason in PLAIN_THERE:
        return "it answers without TLS"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed: {(error.reason or 'unknown').lower().replace('_', ' ')}"
    if isinstance(error, socket.gaierror):
        return "there is no such host"
    if isinstance(error, TimeoutError):
        return str(error) if error.args and not error.errno else SAYS[errno.ETIMEDOUT]
    if not isinstance(error, OSError) or error.errno is None:
        # ZeroMQ's errors are none of the system's, with its numbers.
        return SAYS.get(getattr(error, "errno", None) or 0, str(error))
    said = SAYS.get(error.errno, (error.strerror or "").lower())
    return f"{error.filename}: {said}" if error.filename else said


def seconds(value: float) -> str:
    """Return a duration as text: whole ms below 0.1 s, two digits below 10 s, else whole seconds."""
    if value < 0.0005:
        return "less than 1 ms"
    if value < 0.0995:
        return f"{value * 1e3:.0f} ms"
    return f"{value:.2g} s" if value < 9.95 else f"{value:,.0f} s"


@cache
def version() -> str:
    """Return the version that is installed; `unknown` where the sources run without being installed."""
    try:
        return importlib.metadata.version("warmpath-router")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
