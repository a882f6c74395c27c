"""The options of `warmpath gateway` and `warmpath serve` that name engines."""

import argparse
import os
from pathlib import Path
from typing import NamedTuple

from warmpath.cli.engines.place import Place, PlaceError, configured, places
from warmpath.cli.tls_options import OptionError
from warmpath.router.config.files import EngineKeyError, read_engine_key
from warmpath.router.config.read import ConfigError, load

OUT = Path("out")


class EngineOptions(NamedTuple):
    """The engines, or the configuration, for which a command starts a router."""

    command: str
    """`gateway` or `serve`."""
    places: list[Place]
    out: Path
    """Folder of the configuration and the router's log."""
    config: Path | None = None
    """An existing configuration, of whose engines `places` are; None: one is written."""
    tokenizer: str = ""
    """The folder of a tokenizer, for models whose engines have no /tokenize; empty: none."""
    router: tuple[str, ...] = ()
    """Further options of the router, in the words of `warmpath serve`."""


def add_engines(parser: argparse.ArgumentParser) -> None:
    """Add the options that name engines."""
    add = parser.add_argument_group("engines: start a router for them").add_argument
    add(
        "--engine", action="append", default=[], metavar="URL",
        help="http://HOST:PORT of an engine, or a name with several addresses; may be repeated",
    )  # fmt: skip
    add("--engines-file", type=Path, metavar="FILE", help="a file with such a URL on each line")
    add(
        "--pods", action="append", default=[], metavar="[NAMESPACE/]LABELS[:PORT]",
        help="pods of Kubernetes, such as app=vllm:8000; may be repeated",
    )  # fmt: skip
    add("--api-key-file", type=Path, metavar="FILE", help="a file with the engines' API key")
    add(
        "--tokenizer", type=Path, metavar="FOLDER",
        help="a folder with tokenizer.json and chat template, for engines without /tokenize",
    )  # fmt: skip


def _of_file(args: argparse.Namespace, command: str) -> EngineOptions:
    try:
        config = load(args.config, os.environ)
    except ConfigError as error:
        raise OptionError(f"--config: {error}") from None
    if config.server.tls.cert or config.clients:
        text = "has [server.tls] or [[clients]]: start `warmpath serve` with it, and give --router"
        raise OptionError(f"--config: {args.config} {text}")
    named = configured(config, args.config.parent)
    return EngineOptions(command, named, args.out or OUT, args.config)


def engine_options(args: argparse.Namespace, command: str) -> EngineOptions | None:
    """Return what the options name; None where they name neither engines nor a configuration.

    Raises OptionError.
    """
    if args.engine or args.engines_file or args.pods:
        if args.config:
            raise OptionError("--config: does not go with --engine, --engines-file or --pods")
    elif args.api_key_file or args.tokenizer:
        option = "--api-key-file" if args.api_key_file else "--tokenizer"
        raise OptionError(f"{option}: needs --engine, --engines-file or --pods")
    else:
        return _of_file(args, command) if args.config else None
    file, tokenizer = (one and one.absolute() for one in (args.api_key_file, args.tokenizer))
    if tokenizer and not (tokenizer / "tokenizer.json").is_file():
        raise OptionError(f"--tokenizer: {args.tokenizer} has no tokenizer.json")
    try:
        if file:
            read_engine_key(file)
        named = places(args.engine, args.engines_file, args.pods, str(file or ""))
    except EngineKeyError as error:
        raise OptionError(f"--api-key-file: {error}") from None
    except PlaceError as error:
        raise OptionError(str(error)) from None
    return EngineOptions(command, named, args.out or OUT, tokenizer=str(tokenizer or ""))
