"""`warmpath gateway`: Envoy in front of a router and its pods. `lab.local.gateway` simulates pods."""

import argparse
import asyncio
import json
import math
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from warmpath.cli.asking import ROUTER, add_channel, answer
from warmpath.cli.child import ChildError, again, until_ended
from warmpath.cli.engines.fleet import running
from warmpath.cli.engines.place import EngineOptions, add_engines, engine_options
from warmpath.cli.engines.written import is_free
from warmpath.cli.findings import tell_findings
from warmpath.cli.gateway.bootstrap import (
    AddressError,
    GatewayDescription,
    address_of,
    bootstrap,
    ip_address_of,
)
from warmpath.cli.gateway.process import EnvoyProcess, NoEnvoyError, find_envoy
from warmpath.cli.tls_options import OptionError, check_tls
from warmpath.client.async_client import AsyncClient
from warmpath.client.failure import CallError
from warmpath.process.address import HostPort, is_loopback
from warmpath.process.command_line import FOUND, USAGE, command_parser
from warmpath.process.tasks import Work, cancel, kept
from warmpath.process.tls import TlsPaths
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb

OUT = Path("out/gateway")
LISTEN = "127.0.0.1:8000"
ASK_SECONDS = 10.0
LOOK_SECONDS = 1.0
NO_MODEL = "MODEL"
"""Stands for a model's name in an example where none is known."""
MOST_SIMULATED = 64
MOST_PODS = 4096
MOST_BODY_BYTES = 1 << 30
QUESTION = (
    "A language model reads a prompt from its beginning, and an engine keeps what it has "
    "computed for it in blocks of some tokens. Another prompt that begins with the same words "
    "need not be computed again as far as those blocks reach, if it comes to the same engine. "
    "Which of the engines has read this one before? Ask again, and it is the same one, and most "
    "of this text was cached there."
)
"""Longer than the blocks of usual engines: shorter prompts are never cached."""

Simulated = Callable[[argparse.Namespace, Path, GatewayDescription], Awaitable[None]]
"""Serves simulated pods; takes the options, the path of Envoy, and the gateway without its pods."""


def run(argv: Sequence[str] | None, summary: str | None, simulated: Simulated) -> int:
    """Run the command, whose help begins with `summary`; return its exit status."""
    args, ended = _parser(summary).parse_args(argv), partial(until_ended, "gateway")
    try:
        engines = engine_options(args, "gateway")
        gateway = _without_pods(args, engines)
        if args.simulate:
            return ended(lambda: simulated(args, find_envoy(args.envoy), gateway))
        if engines is not None:
            return ended(lambda: _serve_engines(engines, args.envoy, gateway))
        pods = _pods(args)
        if isinstance(pods, int):
            return pods
        gateway = replace(gateway, pods=pods.addresses)
        if args.print_config:
            print(json.dumps(bootstrap(gateway), indent=2))
            return 0
        follows = not args.pod
        return ended(lambda: serve(find_envoy(args.envoy), gateway, pods.model, follows=follows))
    except OptionError as error:
        print(f"warmpath gateway: {error}", file=sys.stderr)
        return USAGE


def _parser(summary: str | None) -> argparse.ArgumentParser:
    found = command_parser(
        "gateway",
        summary,
        "warmpath gateway --engine http://10.0.0.1:8000 --engine http://10.0.0.2:8000",
    )
    add = found.add_argument
    add("--listen", help=f"host:port for clients; {LISTEN} by default; port 0 takes a free one")
    add("--insecure", action="store_true", help="let other machines in, without TLS")
    # No defaults for --router and --out: --simulate has a router of its own, and only it has logs.
    add("--router", help=f"host:port of the router; {ROUTER} by default")
    add(
        "--pod", action="append", default=[], metavar="IP:PORT",
        help="a pod; may be repeated; without it the router is asked for its pods; with --print-config"
        " also a name of several",
    )  # fmt: skip
    add(
        "--failure-mode", choices=("fail-close", "fail-open"), default="fail-close",
        help="while the router cannot be asked: answer 503, or send requests to the pods round robin",
    )  # fmt: skip
    add("--max-body-bytes", type=int, default=8 << 20, help="longest body of a request")
    add("--access-log", action="store_true", help="write a line for each request to standard error")
    add("--envoy", type=Path, help="Envoy's program; else that on the PATH or in the environment")
    add("--print-config", action="store_true", help="print Envoy's configuration and start nothing")
    add(
        "--simulate", type=int, default=0, metavar="PODS",
        help="start so many simulated pods and a router for them",
    )  # fmt: skip
    add(
        "--out",
        type=Path,
        help=f"folder for what it writes; {OUT} by default with --simulate, else out",
    )
    add("--config", type=Path, help="start a router with this configuration")
    add_engines(found)
    add_channel(found)
    found.set_defaults(timeout=ASK_SECONDS)
    return found


def _without_pods(args: argparse.Namespace, engines: EngineOptions | None) -> GatewayDescription:
    """Return the gateway that the options describe; give --router and --out their defaults.

    With `engines` a router is started for them. Raises OptionError.
    """
    with_router = engines is not None
    encrypted = [one.name for one in (engines.places if engines else ()) if one.https]
    if args.listen is None:
        # An engine of this machine may have the usual port.
        host, port = HostPort.of(LISTEN)
        args.listen = LISTEN if not with_router or is_free(port, host) else f"{host}:0"
    simulates, listen = bool(args.simulate), _address("--listen", args.listen)
    starts = simulates or with_router
    option = "--simulate" if simulates else "--engine or --config"
    wrong: list[tuple[object, str]] = [
        (
            simulates and not 0 < args.simulate <= MOST_SIMULATED,
            f"--simulate: must be from 1 to {MOST_SIMULATED}",
        ),
        (
            encrypted,
            f"--engine: https://{''.join(encrypted[:1])}: Envoy calls engines without TLS here",
        ),
        (simulates and with_router, "--simulate: does not go with --engine or --config"),
        (starts and args.router is not None, f"--router: does not go with {option}"),
        (starts and args.pod, f"--pod: does not go with {option}"),
        (starts and args.tls_ca, f"--tls-ca: does not go with {option}"),
        (starts and args.print_config, f"--print-config: does not go with {option}"),
        (not starts and args.out, "--out: only --engine, --config and --simulate write there"),
        (len(args.pod) > MOST_PODS, f"--pod: at most {MOST_PODS}"),
        (
            not 0 < args.max_body_bytes <= MOST_BODY_BYTES,
            f"--max-body-bytes: must be from 1 to {MOST_BODY_BYTES}",
        ),
        (not listen.is_ip, f"--listen: {args.listen} is not an IP address and a port"),
        (
            not is_loopback(args.listen) and not args.insecure,
            f"--listen: {args.listen} lets other machines in, without TLS; --insecure allows it",
        ),
        (args.token_file, "--token-file: Envoy cannot send a token; give --tls-cert and --tls-key"),
    ]
    for is_so, problem in wrong:
        if is_so:
            raise OptionError(problem)
    check_tls(args)
    args.router, args.out = args.router or ROUTER, args.out or OUT
    files = (args.tls_ca, args.tls_cert, args.tls_key)
    return GatewayDescription(
        listen=listen, router=_address("--router", args.router), pods=(),
        failure_mode=args.failure_mode,
        router_tls=TlsPaths(*(file and file.absolute() for file in files)) if files[0] else None,
        logs_requests=args.access_log, body_bytes=args.max_body_bytes,
    )  # fmt: skip


def _address(named: str, text: str, read: Callable[[str], HostPort] = address_of) -> HostPort:
    try:
        return read(text)
    except AddressError as error:
        raise OptionError(f"{named}: {error}") from None


class ListedPods(NamedTuple):
    """The pods that a router lists."""

    addresses: list[HostPort]
    """The addresses of the pods that Envoy can reach, sorted."""
    problems: list[str]
    """A sentence about each pod that Envoy cannot reach."""
    model: str = NO_MODEL
    """One of the pods' models, or NO_MODEL, for the example that is printed."""


def listed(reply: pb.ListPodsResponse) -> ListedPods:
    """Return the pods of a router's answer."""
    addresses, problems = set(), []
    for one in reply.pods:
        try:
            addresses.add(ip_address_of(one.address))
        except AddressError as error:
            problems.append(f"the router's pod {one.id}: {error}")
    model = min((one.model for one in reply.pods if one.model), default=NO_MODEL)
    return ListedPods(sorted(addresses), problems, model)


def _pods(args: argparse.Namespace) -> ListedPods | int:
    """Return the pods that options name, or else those of the router, or an exit status.

    A router that lists none may list some later, which only a printed configuration does not hear of.
    Raises OptionError.
    """
    if args.pod:
        # A running Envoy reads its pods from a file, which can have no names.
        read = address_of if args.print_config else ip_address_of
        return ListedPods([_address("--pod", one, read) for one in args.pod], [])
    reply = answer(args, lambda client: client.pods())
    if isinstance(reply, int):
        return reply
    found = listed(reply)
    for problem in found.problems:
        print(f"warmpath gateway: left out: {problem}", file=sys.stderr)
    if not found.addresses:
        text = f"the router at {args.router} lists no pod that Envoy can reach"
        more = "" if args.print_config else " yet"
        print(f"warmpath gateway: {text}{more}", file=sys.stderr)
        if args.print_config:
            return FOUND
    return found


async def _serve_engines(
    engines: EngineOptions, given: Path | None, gateway: GatewayDescription
) -> None:
    """Run a router for engines, and Envoy in front of them; without an Envoy the router alone."""
    try:
        program = find_envoy(given)
    except NoEnvoyError as error:
        program, missing = None, str(error)
    async with running(engines, say) as fleet:
        found = listed(pb.ListPodsResponse(pods=fleet.pods))
        say("\n".join(fleet.start(engines)))
        if any(place.key_file for place in engines.places):
            say(
                "  the engines want their API key: clients send it, the curl with -H 'authorization: …'"
            )
        ends = [asyncio.create_task(fleet.keep(say))]
        if program is None:
            say(f"{missing}\nUntil then gateways can ask the router. Ctrl-C ends it.")
        else:
            gateway = replace(gateway, router=HostPort.of(fleet.router), pods=found.addresses)
            ends.append(asyncio.create_task(serve(program, gateway, found.model, follows=True)))
        try:
            done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            for one in done:
                one.result()
        finally:
            await cancel(ends)


async def serve(program: Path, gateway: GatewayDescription, model: str, *, follows: bool) -> None:
    """Run Envoy until the task is cancelled; `follows`: keep its pods as the router lists them.

    The example that is printed has `model`. An Envoy that ends is started again at the same address;
    raises ChildError as `again` does.
    """
    before = -math.inf
    while True:
        async with AsyncExitStack() as stack:
            envoy = await stack.enter_async_context(EnvoyProcess(program, gateway))
            _print_start(envoy.address, envoy.admin, gateway, model)
            if follows:
                router = str(gateway.router)
                client = AsyncClient(router, tls=gateway.router_tls, timeout=ASK_SECONDS)
                await stack.enter_async_context(client)
                put = partial(follow, client, gateway.pods, envoy.replace_pods, say)
                stack.callback(kept(Work("following the router's pods", put)).cancel)
                tell = partial(tell_findings, client, say)
                stack.callback(kept(Work("telling what is wrong", tell)).cancel)
            try:
                await envoy.ended()
            except ChildError as error:
                before = again(error, before, say)
                gateway = replace(gateway, listen=address_of(envoy.address))


async def follow(
    client: AsyncClient,
    pods: Sequence[HostPort],
    put: Callable[[Sequence[HostPort]], None],
    tell: Callable[[str], None],
    *,
    pause: float = LOOK_SECONDS,
) -> None:
    """Call `put` with the router's pods whenever they change, at first from `pods`, until cancelled.

    `tell` gets lines for the user. A router that does not answer, or lists no pod, changes nothing.
    """
    told: set[str] = set()
    while True:
        await asyncio.sleep(pause)
        try:
            found = listed(await client.pods())
        except CallError:
            continue
        for problem in found.problems:
            if problem not in told:
                tell(problem)
        told = set(found.problems)
        if found.addresses and found.addresses != pods:
            pods = found.addresses
            put(pods)
            tell(f"pods: {', '.join(map(str, pods))}")


def say(line: str) -> None:
    """Print a line at once, even into a pipe."""
    print(line, flush=True)


def _print_start(address: str, admin: Path, gateway: GatewayDescription, model: str) -> None:
    messages = [{"role": "user", "content": QUESTION}]
    body = json.dumps({"model": model, "max_tokens": 20, "messages": messages})
    pods = ", ".join(map(str, gateway.pods)) or "none yet"
    named = f", with one of your models for {NO_MODEL}" if model == NO_MODEL else ""
    say(
        f"""Envoy listens on {address}
  it asks the router at {gateway.router} ({gateway.failure_mode}); pods: {pods}
  its statistics: curl --unix-socket {admin} http://envoy/stats
Paste this twice{named}; the second time x-warmpath-cached-tokens says what was cached:
  curl -si http://{address}/v1/chat/completions -H 'content-type: application/json' -d '{body}'
Ctrl-C ends all that was started."""
    )
