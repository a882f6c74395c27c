"""`warmpath serve`: the router process."""

import argparse
import asyncio
import logging
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from aiohttp.http_exceptions import HttpProcessingError

from router.assemble import running
from router.config import Config
from router.loop import new_loop
from router.read_config import ConfigError, load


def main(argv: Sequence[str] | None = None) -> int:
    """Serve the router until SIGTERM or Ctrl-C."""
    parser = argparse.ArgumentParser(prog="warmpath serve", description=main.__doc__)
    parser.add_argument("--config", type=Path, required=True, help="the TOML file")
    parser.add_argument(
        "--log-level", default="info", choices=("debug", "info", "warning", "error")
    )
    args = parser.parse_args(argv)
    logging.basicConfig(
        level=args.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    logging.getLogger("aiohttp.server").addFilter(_is_ours)
    # It says each request that an engine's tokenizer is asked.
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    try:
        config = load(args.config)
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(_serve(config, args.config.parent))
    except ConfigError as error:
        print(f"warmpath serve: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"warmpath serve: {args.config}: {error}", file=sys.stderr)
        return 1
    return 0


def _is_ours(record: logging.LogRecord) -> bool:
    """Whether a fault is the server's; what is no HTTP at all was answered, and is the client's."""
    return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))


async def _serve(config: Config, folder: Path) -> None:
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, ended.set)
    async with running(config, folder) as router:
        http = f", HTTP on {router.http_address}" if router.http_address else ""
        print(f"warmpath serves gRPC on {router.address}{http}", flush=True)
        await ended.wait()
