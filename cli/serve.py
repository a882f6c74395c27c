"""`warmpath serve`: the router, from a configuration file or from engines' addresses."""

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from warmpath.cli.child import until_ended
from warmpath.cli.engines.fleet import running
from warmpath.cli.engines.place import OUT, EngineOptions, add_engines, engine_options
from warmpath.cli.tls_options import OptionError
from warmpath.process.command_line import USAGE
from warmpath.router import serve


def main(argv: Sequence[str] | None = None) -> int:
    """Serve a router until SIGTERM or Ctrl-C; SIGHUP or a change of its file reloads it."""
    parser = serve.serve_parser(main.__doc__)
    add_engines(parser)
    parser.add_argument(
        "--out", type=Path, help=f"folder for the configuration of engines; {OUT} by default"
    )
    args = parser.parse_args(argv)
    try:
        if args.config and not (args.engine or args.engines_file or args.pods):
            return serve.run(args)
        engines = engine_options(args, "serve")
    except OptionError as error:
        print(f"warmpath serve: {error}", file=sys.stderr)
        return USAGE
    if engines is None:
        parser.error("give --config FILE, or --engine URL for each engine")
    words = tuple(_words(args, parser.get_default))
    return until_ended("serve", partial(_serve, engines._replace(router=words)))


def _words(args: argparse.Namespace, default: Callable[[str], object]) -> Iterator[str]:
    """Yield the given options that are the router's own, in words for its command line."""
    if args.shadow:
        yield "--shadow"
    for name in ("shadow_log", "log_level", "log_format"):
        if (value := vars(args)[name]) != default(name):
            yield f"--{name.replace('_', '-')}={value}"


async def _serve(engines: EngineOptions) -> None:
    async with running(engines, lambda line: print(line, flush=True)) as fleet:
        for line in fleet.start(engines):
            print(line, flush=True)
        await fleet.process.ended()
