"""The command line: `warmpath NAME …` runs the command of that name.

Commands are entry points of the group `warmpath.commands`, so that each stays in its own package and
only the one that runs is loaded.
"""

import ast
import difflib
import importlib.metadata
import importlib.util
import os
import shutil
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

GROUP = "warmpath.commands"
GROUPS = {
    "serve: run a router and the parts beside it": ("serve", "gateway", "publish"),
    "ask: talk to a running router": ("pods", "score", "explain", "decisions"),
    "look: check files, deployments and indexes": (
        "check-config", "doctor", "health", "index", "check-index", "version", "completion",
    ),
    "try: simulate, record and compare": (
        "demo", "fleet", "simulate", "simworker", "record", "verify",
    ),
}  # fmt: skip
"""The commands as `warmpath --help` and docs/reference/commands.md order them."""
PARTS = (
    "envoy", "fastokens", "grpc_reflection", "httpx2", "huggingface_hub", "jinja2", "numba", "pygtrie",
    "rich", "shtab", "tokenizers", "uvloop",
)  # fmt: skip
"""Modules of the extra `router`, which a publisher's environment may lack."""
PLOTS = "cycler", "matplotlib"
"""Modules of the extra `report`."""
QUIET = "GRPC_VERBOSITY", "NONE"
"""An environment variable that gRPC's library reads when it is loaded. Otherwise it writes a line for
each failed TLS handshake, which anybody could cause without limit (`process.logs`), and
its own form of errors that commands say in words."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    try:
        try:
            return _run(list(sys.argv[1:] if argv is None else argv))
        finally:
            # An exit flushes, too, but prints a trace where the pipe is closed.
            sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _run(args: Sequence[str]) -> int:
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


def _missing(error: ModuleNotFoundError) -> str:
    """Return what to install for a module of an extra; raise the error for any other."""
    name = (error.name or "").partition(".")[0]
    if name not in (*PARTS, *PLOTS):
        raise error
    extra, image = ("report", "") if name in PLOTS else ("router", ", or take the router's image")
    return (
        f"{name} is not installed; install the extra: pip install 'warmpath-router[{extra}]'{image}"
    )


def _overview(commands: Mapping[str, importlib.metadata.EntryPoint]) -> str:
    grouped = {name for names in GROUPS.values() for name in names}
    others = {"of other packages": sorted(set(commands) - grouped)}
    lines = ["usage: warmpath COMMAND [ARGUMENTS]"]
    for title, names in {**GROUPS, **others}.items():
        told = [line for name in names if name in commands for line in _told(commands[name])]
        lines += ["", title, *told] if told else []
    lines += ["", "'warmpath COMMAND --help' shows a command's options and an example."]
    return "\n".join(lines)


def _told(command: importlib.metadata.EntryPoint) -> Iterable[str]:
    width = min(shutil.get_terminal_size().columns, 100) - 1
    first = f"  {command.name:<13} "
    return textwrap.wrap(
        _summary(command), width, initial_indent=first, subsequent_indent=" " * len(first)
    ) or [first.rstrip()]


def _summary(command: importlib.metadata.EntryPoint) -> str:
    """Return the first line of a command's docstring, read from its source.

    Loading all commands takes seconds, and needs parts that may not be installed.
    """
    spec = importlib.util.find_spec(command.module)
    if spec is None or not (spec.origin or "").endswith(".py"):
        return ""
    for node in ast.parse(Path(str(spec.origin)).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef) and node.name == command.attr:
            return (ast.get_docstring(node) or "").partition("\n")[0]
    return ""
