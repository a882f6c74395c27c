"""The command line: `warmpath NAME …` runs the command of that name.

Commands are entry points of the group `warmpath.commands`, so that each stays in its own package and
only the one that runs is loaded.
"""

import difflib
import importlib.metadata
import os
import sys
from collections.abc import Sequence

GROUP = "warmpath.commands"
PARTS = (
    "envoy", "grpc_reflection", "httpx2", "huggingface_hub", "jinja2", "numba", "pygtrie", "rich",
    "shtab", "tokenizers", "uvloop",
)  # fmt: skip
"""Modules of the extra `router`, which a publisher's environment may lack."""
QUIET = "GRPC_VERBOSITY", "NONE"
"""An environment variable that gRPC's library reads when it is loaded. Otherwise it writes a line for
each failed TLS handshake, which anybody could cause without limit (`process.logs`), and
its own form of errors that commands say in words."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    args = list(sys.argv[1:] if argv is None else argv)
    commands = {point.name: point for point in importlib.metadata.entry_points(group=GROUP)}
    if not args or args[0] in ("-h", "--help", "help"):
        print(_overview(commands))
        return 0
    name = args[0]
    if name == "--version":
        print(f"warmpath {importlib.metadata.version('warmpath-router')}")
        return 0
    if name not in commands:
        near = difflib.get_close_matches(name, commands, 1)
        hint = f"did you mean {near[0]!r}?" if near else "see 'warmpath --help'"
        print(f"warmpath: no command {name!r}; {hint}", file=sys.stderr)
        return 2
    os.environ.setdefault(*QUIET)
    try:
        return int(commands[name].load()(args[1:]))
    except ModuleNotFoundError as error:
        print(f"warmpath {name}: {_missing(error)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader has closed the pipe; flushing the rest at exit would fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _missing(error: ModuleNotFoundError) -> str:
    """Return what to install for a module of the extra; raise the error for any other."""
    if (error.name or "").partition(".")[0] not in PARTS:
        raise error
    extra = "pip install 'warmpath-router[router]'"
    return f"{error.name} is not installed; install the extra: {extra}"


def _overview(commands: dict[str, importlib.metadata.EntryPoint]) -> str:
    lines = ["usage: warmpath COMMAND [ARGUMENTS]", ""]
    for name, point in sorted(commands.items()):
        try:
            summary = (point.load().__doc__ or "").strip().partition("\n")[0]
        except ModuleNotFoundError as error:
            summary = f"({_missing(error)})"
        lines.append(f"  {name:<13} {summary}")
    lines += ["", "'warmpath COMMAND --help' shows the options."]
    return "\n".join(lines)
