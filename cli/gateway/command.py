"""`warmpath gateway`: Envoy in front of a router and its pods. `lab.local.gateway` simulates pods."""

import argparse
import asyncio
import json
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

from warmpath.cli.asking import answer
from warmpath.cli.child import ChildError
from warmpath.cli.gateway.bootstrap import bootstrap
from warmpath.cli.gateway.description import GatewayDescription
from warmpath.cli.gateway.follow import NO_MODEL, ListedPods, follow, listed
from warmpath.cli.gateway.options import (
    ASK_SECONDS,
    check_together,
    given_pods,
    parser,
    without_pods,
)
from warmpath.cli.gateway.process import EnvoyProcess, NoEnvoyError, find_envoy
from warmpath.cli.out_folder import OutFolderError
from warmpath.cli.tls_options import OptionError
from warmpath.client.async_client import AsyncClient
from warmpath.process.command_line import FOUND, USAGE, in_words
from warmpath.process.tasks import Work, kept

QUESTION = "Which of the pods has read this before? Ask again, and it is the same one."


Simulated = Callable[[argparse.Namespace, Path, GatewayDescription], Awaitable[None]]
"""Serves simulated pods, by the options, Envoy's program and the gateway without pods."""


def run(argv: Sequence[str] | None, summary: str | None, simulated: Simulated) -> int:
    """Run the command, whose help begins with `summary`; return its exit status."""
    args = parser(summary).parse_args(argv)
    try:
        check_together(args)
        gateway = without_pods(args)
        if args.simulate:
            return _until_ended(args, lambda program: simulated(args, program, gateway))
        pods = _pods(args)
        if isinstance(pods, int):
            return pods
        gateway = replace(gateway, pods=pods.addresses)
        if args.print_config:
            print(json.dumps(bootstrap(gateway), indent=2))
            return 0
        follows = not args.pod
        return _until_ended(
            args, lambda program: serve(program, gateway, pods.model, follows=follows)
        )
    except (OptionError, OutFolderError) as error:
        print(f"warmpath gateway: {error}", file=sys.stderr)
        return USAGE


def _pods(args: argparse.Namespace) -> ListedPods | int:
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


def _until_ended(args: argparse.Namespace, run: Callable[[Path], Awaitable[None]]) -> int:
    async def ended() -> None:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        await run(find_envoy(args.envoy))

    try:
        asyncio.run(ended())
    except (ChildError, NoEnvoyError, OSError) as error:
        print(f"warmpath gateway: {in_words(error)}", file=sys.stderr)
        is_named = isinstance(error, NoEnvoyError) and args.envoy is not None
        return USAGE if is_named else FOUND
    except (asyncio.CancelledError, KeyboardInterrupt):
        return 0
    return 0


async def serve(program: Path, gateway: GatewayDescription, model: str, *, follows: bool) -> None:
    """Serve until the task is cancelled, with the router's pods if the gateway `follows` it.

    Raises ChildError if Envoy ends.
    """
    async with AsyncExitStack() as stack:
        envoy = await stack.enter_async_context(EnvoyProcess(program, gateway))
        _print_start(envoy.address, envoy.admin, gateway, model)
        if follows:
            router = str(gateway.router)
            client = AsyncClient(router, tls=gateway.router_tls, timeout=ASK_SECONDS)
            await stack.enter_async_context(client)
            run = partial(follow, client, gateway.pods, envoy.replace_pods, say)
            stack.callback(kept(Work("following the router's pods", run)).cancel)
        await envoy.ended()


def say(line: str) -> None:
    """Print a line at once, even into a pipe."""
    print(line, flush=True)


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
        say(line)
