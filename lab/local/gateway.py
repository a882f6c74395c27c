"""`warmpath gateway`, whose option --simulate starts pods and a router."""

import argparse
import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from warmpath.cli.gateway.bootstrap import GatewayDescription
from warmpath.cli.gateway.command import run, say, serve
from warmpath.cli.tls_options import OptionError
from warmpath.lab.local.cluster import MODEL, VOCAB_SIZE, Cluster, WorkerSettings, report_ends
from warmpath.lab.local.out_folder import OutFolderError, claim
from warmpath.lab.local.tokenizer import write_tokenizer
from warmpath.process.address import HostPort
from warmpath.scorer.policy import DEFAULT


def main(argv: Sequence[str] | None = None) -> int:
    """Run Envoy in front of a router and its pods until Ctrl-C."""
    return run(argv, main.__doc__, _serve_simulated)


async def _serve_simulated(
    args: argparse.Namespace, program: Path, gateway: GatewayDescription
) -> None:
    logs = ["router.log", *(f"pod-{number + 1}.log" for number in range(args.simulate))]
    try:
        claim(args.out, logs)
    except OutFolderError as error:
        raise OptionError(str(error)) from error
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="warmpath-")))
        write_tokenizer(folder)
        settings = WorkerSettings(
            blocks=24_000, block_size=16, speed=1.0, vocab_size=VOCAB_SIZE, tokenizer=folder,
            stream_interval=1,
        )  # fmt: skip
        print(f"starting {args.simulate} simulated pods and a router", flush=True)
        cluster = Cluster(settings, args.simulate, args.out, policy=DEFAULT)
        await stack.enter_async_context(cluster)
        gateway = replace(
            gateway,
            router=HostPort.of(cluster.router_address),
            pods=[HostPort.of(one.address) for one in cluster.workers],
        )
        say(f"the router's page: http://{cluster.page_address}/")
        watching = asyncio.create_task(
            report_ends(cluster.processes, lambda _, error: say(str(error)))
        )
        stack.callback(watching.cancel)
        await serve(program, gateway, MODEL, follows=False)
