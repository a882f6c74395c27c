"""`warmpath health`: asks a router or a publisher whether it is fit; the health check of containers.

It imports only the standard library and, for gRPC, the base dependencies, as it runs every few seconds
and in the publisher's image too.
"""

import argparse
import json
import ssl
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from http.client import HTTPException
from typing import Any
from urllib.parse import urlsplit

from warmpath.cli.tls_options import OPTIONS, OptionError, add_tls, check_tls, without_answer
from warmpath.process.command_line import FINE, FOUND, command_parser, in_words
from warmpath.process.tls import TlsFilesError, TlsPaths

ROUTER = "http://127.0.0.1:7401/readyz"
MOST_BYTES = 1 << 16

Conditions = dict[str, dict[str, Any]]
"""By the name of each condition of a router's /readyz: its `required`, `holds` and `reason`."""


def main(argv: Sequence[str] | None = None) -> int:
    """Ask a router or a publisher whether it is fit; exit with 0 if it is, with 1 if not."""
    parser = command_parser(
        "health", main.__doc__, "warmpath health grpc://127.0.0.1:7400/warmpath.v1.Router"
    )
    parser.add_argument(
        "url", nargs="?", default=ROUTER,
        help=f"http or https: a page such as {ROUTER}, the default; grpc://HOST:PORT/SERVICE:"
        " gRPC's health service, with TLS if --tls-ca is given",
    )  # fmt: skip
    parser.add_argument("--timeout", type=float, default=2.0, help="seconds")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_tls(parser, authority="PEM of the authority to trust")
    args = parser.parse_args(argv)
    try:
        check_tls(args)
    except OptionError as error:
        parser.error(str(error))
    parts = urlsplit(args.url)
    if parts.scheme not in ("http", "https", "grpc") or not parts.hostname:
        parser.error(f"url: {args.url!r} is not http://, https:// or grpc://HOST:PORT")
    tls = None
    try:
        if parts.scheme == "https" or args.tls_ca:
            files = TlsPaths(args.tls_ca, args.tls_cert, args.tls_key)
            tls = files.context(ssl.Purpose.SERVER_AUTH)
    except TlsFilesError as error:
        parser.error(f"--tls-{error.part}: {error.problem}")
    try:
        problem, told = _ask_grpc(args) if parts.scheme == "grpc" else _ask_page(args, tls)
    except OSError as error:
        problem, told = in_words(error), {}
    if args.json:
        fields = {"url": args.url, "fit": not problem, "problem": problem, "conditions": told}
        print(json.dumps(fields))
    else:
        said = f"warmpath health: {args.url}: {problem}" if problem else "ok"
        to = sys.stderr if problem else sys.stdout
        print("\n".join((said, *_lines(told))), file=to)
    return FOUND if problem else FINE


def _ask_page(args: argparse.Namespace, tls: ssl.SSLContext | None) -> tuple[str, Conditions]:
    """Return why the process is not fit, empty if it is, and the conditions of its page.

    Raises OSError.
    """
    # A proxy of the environment is not for the container's own loopback.
    openers = [urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=tls)]
    try:
        with urllib.request.build_opener(*openers).open(args.url, timeout=args.timeout) as page:
            return "", _conditions(page.read(MOST_BYTES))
    except urllib.error.HTTPError as error:
        return f"status {error.code}", _conditions(error.read(MOST_BYTES))
    except HTTPException:
        problem = (
            "what answers there is no plain HTTP; if it is HTTPS, the URL is https://HOST:PORT/PAGE; "
            "if it is gRPC, the URL is grpc://HOST:PORT/SERVICE"
        )
        return problem, {}


def _conditions(body: bytes) -> Conditions:
    try:
        return {
            str(name): {key: one[key] for key in ("required", "holds", "reason")}
            for name, one in json.loads(body)["conditions"].items()
        }
    except (ValueError, TypeError, KeyError, AttributeError):
        return {}


def _lines(conditions: Conditions) -> list[str]:
    return [
        f"{'holds' if one['holds'] else 'FAILS' if one['required'] else 'fails, not required'}"
        f"  {name}: {one['reason']}"
        for name, one in conditions.items()
    ]


def _ask_grpc(args: argparse.Namespace) -> tuple[str, Conditions]:
    """Return why the service is not SERVING, empty if it is, and no conditions. Raises OSError."""
    import grpc  # noqa: PLC0415  takes as long as all else, and pages do not need it
    from grpc_health.v1 import health_pb2 as pb  # noqa: PLC0415

    parts = urlsplit(args.url)
    options = [("grpc.enable_http_proxy", 0)]
    if args.tls_ca is None:
        channel = grpc.insecure_channel(parts.netloc, options)
    else:
        cert = args.tls_cert.read_bytes() if args.tls_cert else None
        key = args.tls_key.read_bytes() if args.tls_key else None
        shown = grpc.ssl_channel_credentials(args.tls_ca.read_bytes(), key, cert)
        channel = grpc.secure_channel(parts.netloc, shown, options)
    check = channel.unary_unary(
        "/grpc.health.v1.Health/Check",
        request_serializer=pb.HealthCheckRequest.SerializeToString,
        response_deserializer=pb.HealthCheckResponse.FromString,
    )
    request = pb.HealthCheckRequest(service=parts.path.strip("/"))
    try:
        with channel:
            answer = check(request, timeout=args.timeout)
    except grpc.RpcError as error:
        code, details = error.code().name, error.details() or ""
        names = OPTIONS._replace(address="its URL")
        said = without_answer(code, details, args, asked=parts.netloc, names=names)
        return said or f"{code}: {details}", {}
    is_fit = answer.status == pb.HealthCheckResponse.SERVING
    return "" if is_fit else pb.HealthCheckResponse.ServingStatus.Name(answer.status), {}
