"""`warmpath gateway`: Envoy in front of a router and its pods, or of simulated ones."""

import argparse
import asyncio
import json
import signal
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from warmpath.cli.asking import answer
from warmpath.cli.gateway.bootstrap import bootstrap
from warmpath.cli.gateway.description import GatewayDescription, address_of
from warmpath.cli.gateway.follow import NO_MODEL, ListedPods, follow, listed
from warmpath.cli.gateway.options import (
    ASK_SECONDS,
    OptionError,
    check_together,
    given_pods,
    parser,
    without_pods,
)
from warmpath.cli.gateway.process import EnvoyProcess, NoEnvoyError, find_envoy
from warmpath.cli.out_folder import OutFolderError, claim
from warmpath.client.async_client import AsyncClient
from warmpath.lab.local.cluster import MODEL, Cluster, ClusterError, WorkerSettings
from warmpath.lab.local.tokenizer import write_tokenizer
from warmpath.lab.local.workload import VOCAB_SIZE
from warmpath.process.command_line import FOUND, USAGE, in_words
from warmpath.process.tasks import Work, kept
from warmpath.process.tls import TlsPaths

LOOK_SECONDS = 0.2
"""Seconds between two looks at whether a simulated process has ended."""
QUESTION = "Which of the pods has read this before? Ask again, and it is the same one."


def main(argv: Sequence[str] | None = None) -> int:
    """Run Envoy in front of a router and its pods until Ctrl-C."""
    args = parser(main.__doc__).parse_args(argv)
    try:
        check_together(args)
        gateway = without_pods(args)
        if args.simulate:
            return _run(args, gateway)
        pods = _pods(args)
        if isinstance(pods, int):
            return pods
        gateway = replace(gateway, pods=pods.addresses)
        if args.print_config:
            print(json.dumps(bootstrap(gateway), indent=2))
            return 0
        return _run(args, gateway, pods.model)
    except (OptionError, OutFolderError) as error:
        print(f"warmpath gateway: {error}", file=sys.stderr)
        return USAGE


def _pods(args: argparse.Namespace) -> ListedPods | int:
    """Return the pods; if there are none, print why and return the exit status."""
    if args.pod:
        return ListedPods(given_pods(args), [])
    reply = answer(args, lambda client: client.pods())
    if isinstance(reply, int):
        return reply
    found = listed(reply)
    for problem in found.problems:
        print(f"warmpath gateway: left out: {problem}", file=sys.stderr)
    if not found.addresses:
        text = f"the router at {args.router} lists no pod that Envoy can reach"
        print(f"warmpath gateway: {text}", file=sys.stderr)
        return FOUND
    return found


def _run(args: argparse.Namespace, gateway: GatewayDescription, model: str = MODEL) -> int:
    try:
        program = find_envoy(args.envoy)
        if args.simulate:
            asyncio.run(_serve_simulated(args, program, gateway))
        else:
            asyncio.run(_serve(program, gateway, model, follows=not args.pod))
    except (ClusterError, NoEnvoyError, OSError) as error:
        print(f"warmpath gateway: {in_words(error)}", file=sys.stderr)
        is_named = isinstance(error, NoEnvoyError) and args.envoy is not None
        return USAGE if is_named else FOUND
    except (asyncio.CancelledError, KeyboardInterrupt):
        return 0
    return 0


async def _serve_simulated(
    args: argparse.Namespace, program: Path, gateway: GatewayDescription
) -> None:
    logs = ["router.log", *(f"pod-{number + 1}.log" for number in range(args.simulate))]
    claim(args.out, logs)
    _end_with_sigterm()
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="warmpath-")))
        write_tokenizer(folder)
        settings = WorkerSettings(
            blocks=24_000, block_size=16, speed=1.0, vocab_size=VOCAB_SIZE, tokenizer=folder,
            stream_interval=1,
        )  # fmt: skip
        print(f"starting {args.simulate} simulated pods and a router", flush=True)
        cluster = Cluster(settings, args.simulate, args.out, router=True)
        await stack.enter_async_context(cluster)
        gateway = replace(
            gateway,
            router=address_of(cluster.router_address),
            pods=[address_of(one.address) for one in cluster.workers],
        )
        _say(f"the router's page: http://{cluster.page_address}/")
        watching = asyncio.create_task(_report_ends(cluster))
        stack.callback(watching.cancel)
        await _serve(program, gateway, MODEL, follows=False)


async def _serve(program: Path, gateway: GatewayDescription, model: str, *, follows: bool) -> None:
    """Serve until the task is cancelled, with the router's pods if the gateway `follows` it.

    Raises ClusterError if Envoy ends.
    """
    _end_with_sigterm()
    async with AsyncExitStack() as stack:
        envoy = await stack.enter_async_context(EnvoyProcess(program, gateway))
        _print_start(envoy.address, envoy.admin, gateway, model)
        if follows:
            files = gateway.router_tls
            tls = None if files is None else TlsPaths(files.ca, files.cert, files.key)
            client = AsyncClient(str(gateway.router), tls=tls, timeout=ASK_SECONDS)
            await stack.enter_async_context(client)
            run = partial(follow, client, gateway.pods, envoy.replace_pods, _say)
            stack.callback(kept(Work("following the router's pods", run)).cancel)
        await envoy.ended()


def _say(line: str) -> None:
    print(line, flush=True)


def _end_with_sigterm() -> None:
    running = asyncio.current_task()
    assert running is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)


async def _report_ends(cluster: Cluster) -> None:
    """Report each simulated process that has ended, once: a killed pod is what users try."""
    reported: set[str] = set()
    while True:
        for process in cluster.processes:
            try:
                process.check()
            except ClusterError as error:
                if process.name not in reported:
                    reported.add(process.name)
                    _say(str(error))
        await asyncio.sleep(LOOK_SECONDS)


def _print_start(address: str, admin: Path, gateway: GatewayDescription, model: str) -> None:
    body = {
        "model": model,
        "max_tokens": 20,
        "messages": [{"role": "user", "content": QUESTION}],
    }
    pods = ", ".join(map(str, gateway.pods))
    named = f", with one of your models for {NO_MODEL}" if model == NO_MODEL else ""
    url = f"http://{address}/v1/chat/completions"
    curl = f"curl -si {url} -H 'content-type: application/json' -d '{json.dumps(body)}'"
    for line in (
        f"Envoy listens on {address}",
        f"  it asks the router at {gateway.router} ({gateway.failure_mode}); pods: {pods}",
        f"  its statistics: curl --unix-socket {admin} http://envoy/stats",
        f"Paste this twice{named}; the second time x-warmpath-cached-tokens says what was cached:",
        f"  {curl}",
        "Ctrl-C ends all that was started.",
    ):
        _say(line)
