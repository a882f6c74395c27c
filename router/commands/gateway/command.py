"""`warmpath gateway`: Envoy in front of a router and its pods, or of simulated ones."""

import argparse
import asyncio
import json
import signal
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from indexer.process.listen import is_loopback
from router.commands.channel import add_channel
from router.commands.client import ROUTER, answer
from router.commands.gateway.binary import NoEnvoyError, find_envoy
from router.commands.gateway.bootstrap import bootstrap
from router.commands.gateway.description import (
    Address,
    AddressError,
    Gateway,
    Limits,
    RouterTls,
    address_of,
)
from router.commands.gateway.process import EnvoyProcess
from router.commands.local.cluster import MODEL, Cluster, ClusterError, WorkerSettings
from router.commands.local.made_up_tokenizer import write_tokenizer
from router.commands.local.workload import VOCAB_SIZE
from router.commands.out_folder import claim

LISTEN = "127.0.0.1:8000"
ASK_SECONDS = 10.0
"""Seconds to wait for the router's list of pods."""
LOOK_SECONDS = 0.2
"""Seconds between two looks at whether a simulated process has ended."""
MOST_SIMULATED = 64
MOST_PODS = 4096
MOST_BODY_BYTES = 1 << 30
QUESTION = "Which of the pods has read this before? Ask again, and it is the same one."


class OptionError(ValueError):
    """An option is wrong, or does not fit another; the message names it."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run Envoy in front of a router and its pods until Ctrl-C."""
    args = _parser().parse_args(argv)
    try:
        gateway = _without_pods(args)
        if args.simulate:
            _check_simulated(args)
            return _run(args, gateway)
        pods = _pods(args)
        if pods is None:
            return 1
        gateway = replace(gateway, pods=pods)
        if args.print_config:
            print(json.dumps(bootstrap(gateway), indent=2))
            return 0
        return _run(args, gateway)
    except OptionError as error:
        print(f"warmpath gateway: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="warmpath gateway",
        description=main.__doc__,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--listen", default=LISTEN, help="host:port for clients; port 0 takes a free one")
    add("--insecure", action="store_true", help="let other machines in, without TLS")
    add("--router", default=ROUTER, help="host:port of the router")
    add(
        "--pod",
        action="append",
        default=[],
        metavar="IP:PORT",
        help="a pod; may be repeated; without it the router is asked for its pods",
    )
    add(
        "--failure-mode",
        choices=("fail-close", "fail-open"),
        default="fail-close",
        help="while the router cannot be asked: answer 503, or let any pod in turn serve",
    )
    add("--max-body-bytes", type=int, default=Limits().body_bytes, help="longest body of a request")
    add("--access-log", action="store_true", help="write a line for each request to standard error")
    add("--envoy", type=Path, help="Envoy's program; else that on the PATH or in the environment")
    add("--print-config", action="store_true", help="print Envoy's configuration and start nothing")
    add(
        "--simulate",
        type=int,
        default=0,
        metavar="PODS",
        help="start so many simulated pods and a router for them",
    )
    add("--out", type=Path, default=Path("out/gateway"), help="folder for logs of --simulate")
    add_channel(parser)
    parser.set_defaults(timeout=ASK_SECONDS)
    return parser


def _pods(args: argparse.Namespace) -> list[Address] | None:
    """Return the addresses of the pods; None, after a message, if the router lists none."""
    if args.pod:
        if len(args.pod) > MOST_PODS:
            raise OptionError(f"--pod: at most {MOST_PODS}")
        return [_ip_address("--pod", one) for one in args.pod]
    reply = answer(args, lambda client: client.pods())
    if reply is None:
        return None
    if not reply.pods:
        print(f"warmpath gateway: the router at {args.router} has no pods", file=sys.stderr)
        return None
    return sorted({_ip_address(f"the router's pod {one.id}", one.address) for one in reply.pods})


def _without_pods(args: argparse.Namespace) -> Gateway:
    """Return the gateway that the options describe, without its pods."""
    if not 0 < args.max_body_bytes <= MOST_BODY_BYTES:
        raise OptionError(f"--max-body-bytes: must be from 1 to {MOST_BODY_BYTES}")
    listen = _address("--listen", args.listen)
    if not listen.is_ip:
        raise OptionError(f"--listen: {args.listen} is not an IP address and a port")
    if not is_loopback(args.listen) and not args.insecure:
        raise OptionError(
            f"--listen: {args.listen} lets other machines in, without TLS; --insecure allows it"
        )
    if args.token_file is not None:
        raise OptionError("--token-file: Envoy cannot send a token; give --tls-cert and --tls-key")
    return Gateway(
        listen=listen,
        router=_address("--router", args.router),
        pods=(),
        failure_mode=args.failure_mode,
        router_tls=_router_tls(args),
        logs_requests=args.access_log,
        limits=replace(Limits(), body_bytes=args.max_body_bytes),
    )


def _router_tls(args: argparse.Namespace) -> RouterTls | None:
    if bool(args.tls_cert) != bool(args.tls_key):
        raise OptionError("--tls-cert and --tls-key: give both or none")
    if args.tls_ca is None:
        if args.tls_cert is not None:
            raise OptionError("--tls-cert: needs --tls-ca")
        return None
    files = (one and one.absolute() for one in (args.tls_ca, args.tls_cert, args.tls_key))
    return RouterTls(*files)


def _address(named: str, text: str) -> Address:
    try:
        return address_of(text)
    except AddressError as error:
        raise OptionError(f"{named}: {error}") from None


def _ip_address(named: str, text: str) -> Address:
    address = _address(named, text)
    if not address.is_ip or not address.port:
        raise OptionError(f"{named}: {text} is not an IP address and a port, which Envoy needs")
    return address


def _check_simulated(args: argparse.Namespace) -> None:
    if not 0 < args.simulate <= MOST_SIMULATED:
        raise OptionError(f"--simulate: must be from 1 to {MOST_SIMULATED}")
    given = {
        "--router": args.router != ROUTER,
        "--pod": args.pod,
        "--tls-ca": args.tls_ca,
        "--print-config": args.print_config,
    }
    for option, is_given in given.items():
        if is_given:
            raise OptionError(f"{option}: does not go with --simulate")


def _run(args: argparse.Namespace, gateway: Gateway) -> int:
    """Serve until Ctrl-C or SIGTERM; with --simulate, in front of simulated pods."""
    try:
        program = find_envoy(args.envoy)
        if args.simulate:
            asyncio.run(_serve_simulated(args, program, gateway))
        else:
            asyncio.run(_serve(program, gateway, "MODEL"))
    except (ClusterError, NoEnvoyError, OSError) as error:
        print(f"warmpath gateway: {error}", file=sys.stderr)
        return 1
    except (asyncio.CancelledError, KeyboardInterrupt):
        return 0
    return 0


async def _serve_simulated(args: argparse.Namespace, program: Path, gateway: Gateway) -> None:
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
        watching = asyncio.create_task(_report_ends(cluster))
        stack.callback(watching.cancel)
        await _serve(program, gateway, MODEL)


async def _serve(program: Path, gateway: Gateway, model: str) -> None:
    """Serve until the task is cancelled. Raises ClusterError if Envoy ends."""
    _end_with_sigterm()
    async with EnvoyProcess(program, gateway) as envoy:
        _print_start(envoy.address, gateway, model)
        await envoy.ended()


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
                    print(error, flush=True)
        await asyncio.sleep(LOOK_SECONDS)


def _print_start(address: str, gateway: Gateway, model: str) -> None:
    body = {
        "model": model,
        "max_tokens": 20,
        "messages": [{"role": "user", "content": QUESTION}],
    }
    pods = ", ".join(map(str, gateway.pods))
    url = f"http://{address}/v1/chat/completions"
    curl = f"curl -si {url} -H 'content-type: application/json' -d '{json.dumps(body)}'"
    for line in (
        f"Envoy listens on {address}",
        f"  it asks the router at {gateway.router} ({gateway.failure_mode}); pods: {pods}",
        "Paste this twice; the second time x-warmpath-cached-tokens says what the pod still had:",
        f"  {curl}",
        "Ctrl-C ends all that was started.",
    ):
        print(line, flush=True)
