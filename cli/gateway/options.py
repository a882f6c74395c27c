"""The options of `warmpath gateway`, checked."""

import argparse
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from warmpath.cli.asking import ROUTER
from warmpath.cli.channel import add_channel
from warmpath.cli.gateway.description import (
    AddressError,
    GatewayDescription,
    GatewayLimits,
    HostPort,
    address_of,
    ip_address_of,
)
from warmpath.cli.tls_options import OptionError, check_tls
from warmpath.process.command_line import command_parser
from warmpath.process.listen import is_loopback
from warmpath.process.tls import TlsPaths

LISTEN = "127.0.0.1:8000"
OUT = Path("out/gateway")
ASK_SECONDS = 10.0
MOST_SIMULATED = 64
MOST_PODS = 4096
MOST_BODY_BYTES = 1 << 30


def parser(summary: str | None) -> argparse.ArgumentParser:
    """Return the command's parser."""
    found = command_parser(
        "gateway", summary, "warmpath gateway --simulate 4 --listen 127.0.0.1:8000"
    )
    add = found.add_argument
    add("--listen", default=LISTEN, help="host:port for clients; port 0 takes a free one")
    add("--insecure", action="store_true", help="let other machines in, without TLS")
    # No defaults for --router and --out: --simulate has a router of its own, and only it has logs.
    add("--router", help=f"host:port of the router; {ROUTER} by default")
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
        help="while the router cannot be asked: answer 503, or send requests to the pods round robin",
    )
    add(
        "--max-body-bytes",
        type=int,
        default=GatewayLimits().body_bytes,
        help="longest body of a request",
    )
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
    add("--out", type=Path, help=f"folder for logs of --simulate; {OUT} by default")
    add_channel(found)
    found.set_defaults(timeout=ASK_SECONDS)
    return found


def check_together(args: argparse.Namespace) -> None:
    """Check the options beside --simulate, and give --router and --out their defaults.

    Raises OptionError.
    """
    if args.simulate:
        _check_simulated(args)
    elif args.out is not None:
        raise OptionError("--out: only --simulate writes logs there")
    args.router = ROUTER if args.router is None else args.router
    args.out = args.out or OUT


def _check_simulated(args: argparse.Namespace) -> None:
    if not 0 < args.simulate <= MOST_SIMULATED:
        raise OptionError(f"--simulate: must be from 1 to {MOST_SIMULATED}")
    given = {
        "--router": args.router is not None,
        "--pod": args.pod,
        "--tls-ca": args.tls_ca,
        "--print-config": args.print_config,
    }
    for option, is_given in given.items():
        if is_given:
            raise OptionError(f"{option}: does not go with --simulate")


def given_pods(args: argparse.Namespace) -> list[HostPort]:
    """Return the pods that options name. Raises OptionError."""
    if len(args.pod) > MOST_PODS:
        raise OptionError(f"--pod: at most {MOST_PODS}")
    return [_address("--pod", one, ip_address_of) for one in args.pod]


def without_pods(args: argparse.Namespace) -> GatewayDescription:
    """Return the gateway that the options describe, without its pods. Raises OptionError."""
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
    return GatewayDescription(
        listen=listen,
        router=_address("--router", args.router),
        pods=(),
        failure_mode=args.failure_mode,
        router_tls=_router_tls(args),
        logs_requests=args.access_log,
        limits=replace(GatewayLimits(), body_bytes=args.max_body_bytes),
    )


def _router_tls(args: argparse.Namespace) -> TlsPaths | None:
    check_tls(args)
    if args.tls_ca is None:
        return None
    files = (one and one.absolute() for one in (args.tls_ca, args.tls_cert, args.tls_key))
    return TlsPaths(*files)


def _address(named: str, text: str, read: Callable[[str], HostPort] = address_of) -> HostPort:
    try:
        return read(text)
    except AddressError as error:
        raise OptionError(f"{named}: {error}") from None
