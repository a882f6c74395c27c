"""`warmpath serve`: the router process."""

import argparse
import asyncio
import contextlib
import gc
import logging
import os
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from warmpath.indexer.compiled.memory import new_file
from warmpath.indexer.embedded import warm_up_compiled
from warmpath.process.command_line import command_parser, in_words, version
from warmpath.process.http_listener import ignore_malformed_http
from warmpath.process.logs import FORMS, formatter, limited_handler
from warmpath.process.loop import new_loop
from warmpath.process.signals import end_at_once, on_signals
from warmpath.process.tasks import Work, cancel, kept
from warmpath.router.assemble.means import OneOfSeveral, ShadowMode
from warmpath.router.assemble.running import running
from warmpath.router.config.mistakes import doubts
from warmpath.router.config.read import ConfigError, load, mistakes, without_mistakes
from warmpath.router.config.schema import Config
from warmpath.router.processes import Processes, check_free, share_of
from warmpath.router.reload import Reloader, content_of
from warmpath.router.tracing.environment import tracer_of

log = logging.getLogger(__name__)

ALLOCATED = 5_000
"""New objects after which the garbage collector looks at the newest ones."""


def main(argv: Sequence[str] | None = None) -> int:
    """Serve the router until SIGTERM or Ctrl-C; SIGHUP or a change of its file reloads it."""
    return run(serve_parser(main.__doc__).parse_args(argv))


def serve_parser(summary: str | None) -> argparse.ArgumentParser:
    """Return the command's parser, whose help begins with `summary`."""
    parser = command_parser("serve", summary, "warmpath serve --config deploy/warmpath.toml")
    parser.add_argument("--config", type=Path, help="the TOML file")
    parser.add_argument(
        "--log-level",
        default="info",
        choices=("debug", "info", "warning", "error"),
        help="the least that is logged",
    )
    parser.add_argument("--log-format", default="text", choices=FORMS, help="the form of log lines")
    parser.add_argument(
        "--shadow",
        action="store_true",
        help="decide nothing: compare another gateway's choices with the policy's, on the live page",
    )
    parser.add_argument(
        "--shadow-log",
        metavar="FILE",
        type=Path,
        help="that gateway's access log, which is followed as it grows; implies --shadow",
    )
    # `_supervise` gives these.
    parser.add_argument("--process", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--siblings", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--memory", type=int, help=argparse.SUPPRESS)
    return parser


def run(args: argparse.Namespace) -> int:
    """Run the router of a configuration file, by the parsed options; return its exit status."""
    handler = limited_handler(time.monotonic)
    handler.setFormatter(formatter(args.log_format, args.process))
    logging.basicConfig(handlers=[handler], level=args.log_level.upper())
    ignore_malformed_http()
    # httpx2 logs each request to an engine's tokenizer at INFO; Numba logs each step of the compiler.
    for library in ("httpx2", "numba"):
        logging.getLogger(library).setLevel(logging.WARNING)
    try:
        # Before it is read: a change from then on is noticed.
        begun = content_of(args.config)
        found = mistakes(args.config, os.environ)
        config = without_mistakes(found)
        if args.process is None:
            for doubt in doubts(config):
                log.warning("%s", found.placed(*doubt))
        if config.server.processes > 1 and args.process is None:
            return asyncio.run(_supervise(config, args))
        config = share_of(config, args.process)
        # Compiling takes minutes where no compiled code is on disk; nothing serves before it.
        end_at_once()
        warm_up_compiled()
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(_serve(config, begun, args, handler))
    except ConfigError as error:
        _complain(args, str(error))
        return 2
    except OSError as error:
        _complain(args, f"{args.config}: {in_words(error)}")
        return 1
    return 0


def _shadow(args: argparse.Namespace) -> ShadowMode | None:
    return ShadowMode(args.shadow_log) if args.shadow or args.shadow_log else None


def _process(args: argparse.Namespace) -> OneOfSeveral | None:
    if args.process is None:
        return None
    return OneOfSeveral(args.siblings, args.memory, follows=args.process == 0)


def _complain(args: argparse.Namespace, problem: str) -> None:
    if args.log_format == "json":
        log.error("%s", problem)
    else:
        print(f"warmpath serve: {problem}", file=sys.stderr)


def _say_ready(args: argparse.Namespace, config: Config, where: str) -> None:
    """Say where it serves, and whom: in a log of JSON, otherwise and to a parent on standard output."""
    where = f"{where}, {_protection(config)}"
    if _shadow(args):
        where += "; in shadow, it decides nothing"
    if args.log_format == "json" and args.process is None:
        log.info("warmpath %s serves gRPC on %s", version(), where)
    else:
        print(f"warmpath serves gRPC on {where}", flush=True)


def _protection(config: Config) -> str:
    tls = config.server.tls
    if config.clients:
        whom = f"[[clients]]: {len(config.clients)}"
    else:
        whom = "any caller with a certificate" if tls.client_ca else "any caller"
    return f"{'with' if tls.cert else 'without'} TLS, for {whom}"


async def _supervise(config: Config, args: argparse.Namespace) -> int:
    server = config.server
    check_free(server.listen)
    given = (
        *("-m", "warmpath.cli", "serve", "--config", str(args.config)),
        *("--log-level", args.log_level, "--log-format", args.log_format),
        *(("--shadow",) if _shadow(args) else ()),
    )
    # One process follows the log; in each they would all be compared again.
    first = ("--shadow-log", str(args.shadow_log)) if args.shadow_log else ()
    memory = new_file()
    processes = Processes(
        server.processes,
        lambda number, siblings: (
            *given,
            *(() if number else first),
            *("--process", str(number), "--siblings", str(siblings), "--memory", str(memory)),
        ),
        memory,
        drain_seconds=server.drain_delay_seconds + server.drain_seconds,
    )
    loop = asyncio.get_running_loop()
    on_signals(loop, processes.end, reload=processes.reload)

    def ready() -> None:
        http = f", HTTP from {server.metrics_listen} on" if server.metrics_listen else ""
        _say_ready(args, config, f"{server.listen}, {server.processes} processes{http}")

    return await processes.run(ready)


async def _serve(
    config: Config, begun: bytes | None, args: argparse.Namespace, handler: logging.Handler
) -> None:
    ended, asked = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    on_signals(loop, ended.set, reload=asked.set)
    if args.process is not None:
        # The parent writes nothing to standard input, which becomes readable only at the parent's end.
        loop.add_reader(sys.stdin.fileno(), ended.set)
    tracer = tracer_of(os.environ, version())
    handler.setFormatter(
        formatter(args.log_format, args.process, tracer.trace_id if tracer.is_on else None)
    )
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(asyncio.to_thread, tracer.close)
        router = await stack.enter_async_context(
            running(config, args.config.parent, tracer, _shadow(args), process=_process(args))
        )
        # A full collection stops all threads. It need not look at what lives until the end, and need not
        # look so often at what is kept of picks: calls leave hardly any cycles.
        gc.collect()
        gc.freeze()
        gc.set_threshold(ALLOCATED, 10, 50)
        http = f", HTTP on {router.http_address}" if router.http_address else ""
        _say_ready(args, config, f"{router.address}{http}")
        reloader = Reloader(
            config,
            lambda: share_of(load(args.config, os.environ, again=True), args.process),
            router.reload,
            content=partial(content_of, args.config),
            begun=begun,
        )
        reloading = kept(Work("reloading the configuration", partial(reloader.run, asked)))
        looking = kept(Work("looking for a changed configuration", partial(reloader.watch, asked)))
        await ended.wait()
        await cancel([reloading, looking])
    log.info("the router has ended")
