"""`warmpath completion`: a shell's completion of all commands, made of their parsers."""

import argparse
import importlib.metadata
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from unittest.mock import patch

import shtab

from warmpath.cli.main import GROUP
from warmpath.process.command_line import command_parser


def main(argv: Sequence[str] | None = None) -> int:
    """Print the completion script of a shell."""
    parser = command_parser("completion", main.__doc__, 'eval "$(warmpath completion bash)"')
    parser.add_argument("shell", choices=("bash", "zsh"), help="the shell that reads the script")
    args = parser.parse_args(argv)
    whole = argparse.ArgumentParser(prog="warmpath", add_help=False)
    below = whole.add_subparsers()
    for name, one in parsers(importlib.metadata.entry_points(group=GROUP)):
        for action in one._actions:  # noqa: SLF001  argparse has no public way to its options
            if action.type is Path:
                action.complete = shtab.FILE  # type: ignore[attr-defined]
        if " " not in name:
            summary = (one.description or "").partition(". ")[0]
            below.add_parser(name, parents=[one], add_help=False, help=summary)
    print(shtab.complete(whole, args.shell))
    return 0


class _Parsing(BaseException):
    """A command has built its parser, the argument, and is about to parse."""


def parsers(
    commands: Iterable[importlib.metadata.EntryPoint],
) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Yield the parser of each command and of each subcommand, with its words (`index stats`)."""
    for point in sorted(commands, key=lambda one: one.name):
        try:
            command = point.load()
        except ModuleNotFoundError:
            # A part of the extra `router` is not installed, and then the command does not run either.
            continue
        parser = parser_of(command)
        yield point.name, parser
        for name, below in _subcommands(parser).items():
            yield f"{point.name} {name}", below


def parser_of(command: Callable[[Sequence[str]], int]) -> argparse.ArgumentParser:
    """Return the parser that a command builds: the first with which it parses its arguments."""

    def stop(parser: argparse.ArgumentParser, *_: object) -> None:
        raise _Parsing(parser)

    with patch.object(argparse.ArgumentParser, "parse_known_args", stop):
        try:
            command([])
        except _Parsing as parsing:
            parser: argparse.ArgumentParser = parsing.args[0]
            return parser
    raise TypeError(f"{command} parses no arguments")


def _subcommands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    # argparse has no public way to its options and subcommands.
    found = [one for one in parser._actions if isinstance(one, argparse._SubParsersAction)]  # noqa: SLF001
    return dict(found[0].choices) if found else {}
