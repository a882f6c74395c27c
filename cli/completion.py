"""`warmpath completion`: a shell's completion of all commands, made of their parsers."""

import argparse
import importlib.metadata
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

from warmpath.cli.main import GROUP
from warmpath.process.command_line import command_parser


def main(argv: Sequence[str] | None = None) -> int:
    """Print the completion script of a shell."""
    parser = command_parser("completion", main.__doc__, 'eval "$(warmpath completion bash)"')
    parser.add_argument("shell", choices=("bash", "zsh"), help="the shell that reads the script")
    args = parser.parse_args(argv)
    found = list(parsers(importlib.metadata.entry_points(group=GROUP)))
    print(_bash(found) if args.shell == "bash" else _zsh(found))
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


def _options(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    return [one for one in parser._actions if one.help != argparse.SUPPRESS]  # noqa: SLF001


def _words(words: Sequence[Any]) -> str:
    return " ".join(str(word) for word in words)


def _bash(found: Sequence[tuple[str, argparse.ArgumentParser]]) -> str:
    commands = _words([words for words, _ in found if " " not in words])
    below, values, options, places = [], [], [], []
    for words, parser in found:
        names = [name for one in _options(parser) for name in one.option_strings]
        if under := _subcommands(parser):
            below.append(f'    "{words}") _warmpath_below "{_words([*under])}" && return ;;')
        options.append(f'    "{words}") options="{_words(names)}" ;;')
        for one in _options(parser) if not under else ():
            offers = f'_warmpath_words "{_words([*one.choices])}"' if one.choices else ""
            if not one.option_strings and offers:
                places.append(f'    "{words}") {offers} ;;')
            elif one.option_strings and one.nargs != 0:
                at = "|".join(f'"{words} {name}"' for name in one.option_strings)
                does = offers or ("_warmpath_files" if one.type is Path else ":")
                values.append(f"    {at}) {does}; return ;;")
    lines = [
        "# Completion of warmpath for bash, from `warmpath completion bash`.",
        '_warmpath_words() { COMPREPLY=($(compgen -W "$1" -- "$cur")); }',
        '_warmpath_files() { compopt -o filenames 2>/dev/null; COMPREPLY=($(compgen -f -- "$cur")); }',
        "_warmpath_below() {",
        '  if ((COMP_CWORD == 2)); then _warmpath_words "$1 --help"; return 0; fi',
        '  at="$at ${COMP_WORDS[2]}"; return 1',
        "}",
        "_warmpath() {",
        '  local cur="${COMP_WORDS[COMP_CWORD]}" prev="${COMP_WORDS[COMP_CWORD-1]}"',
        '  local at="${COMP_WORDS[1]}" options=""',
        "  COMPREPLY=()",
        f'  if ((COMP_CWORD == 1)); then _warmpath_words "{commands} --help --version"; return; fi',
        '  case "$at" in', *below, "  esac",
        '  case "$at $prev" in', *values, "  esac",
        '  case "$at" in', *options, "  esac",
        '  if [[ "$cur" == -* ]]; then _warmpath_words "$options"; return; fi',
        '  case "$at" in', *places, "    *) _warmpath_files ;;", "  esac",
        "}",
        "complete -F _warmpath warmpath",
    ]  # fmt: skip
    return "\n".join(lines)


def _zsh(found: Sequence[tuple[str, argparse.ArgumentParser]]) -> str:
    commands = [_named(words, parser) for words, parser in found if " " not in words]
    below, cases = [], []
    for words, parser in found:
        if under := _subcommands(parser):
            named = [_named(name, one) for name, one in under.items()]
            below += [
                f"    {words})",
                "      if (( CURRENT == 3 )); then",
                f"        local -a below=({_words(named)}); _describe command below; return",
                "      fi",
                '      at="$at $words[3]"; shift words; (( CURRENT-- )) ;;',
            ]
            continue
        cases.append(f"    {shlex.quote(words)}) _arguments {_words([*_specs(parser)])} ;;")
    lines = [
        "#compdef warmpath",
        "# Completion of warmpath for zsh, from `warmpath completion zsh`.",
        "_warmpath() {",
        '  local at="$words[2]"',
        "  if (( CURRENT == 2 )); then",
        f"    local -a commands=({_words(commands)})",
        "    _describe command commands; return",
        "  fi",
        '  case "$at" in', *below, "  esac",
        "  shift words; (( CURRENT-- ))",
        '  case "$at" in', *cases, "  esac",
        "}",
        "compdef _warmpath warmpath",
    ]  # fmt: skip
    return "\n".join(lines)


def _named(name: str, parser: argparse.ArgumentParser) -> str:
    summary = " ".join((parser.description or "").split())
    return shlex.quote(f"{name}:{_plain(summary).partition('. ')[0]}")


def _specs(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Yield the words with which zsh's `_arguments` completes a command's options."""
    for one in _options(parser):
        value = ""
        if one.nargs != 0:
            said = "_files" if one.type is Path else ""
            said = f"({_words([*one.choices])})" if one.choices else said
            value = f":{one.dest}:{said}"
        if not one.option_strings:
            yield shlex.quote(f"*{value}")
        for name in one.option_strings:
            yield shlex.quote(f"{name}[{_plain(one.help or '')}]{value}")


def _plain(text: str) -> str:
    text = " ".join(text.partition("%(")[0].split())
    return text.translate({ord("["): "(", ord("]"): ")", ord(":"): " -", ord("\\"): "/"})
