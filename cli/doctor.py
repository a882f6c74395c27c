"""`warmpath doctor`: shows how good predictions were and likely faults, and checks all parts."""

import argparse
import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from warmpath.cli.asking import (
    ROUTER,
    failed,
    fields_of,
    open_client,
    print_rich,
    problem_of_call,
    router_parser,
)
from warmpath.cli.asking import seconds as seconds_of
from warmpath.cli.console import new_table
from warmpath.cli.deployment.check import Check
from warmpath.cli.deployment.engine import FORMS, ask_router
from warmpath.cli.deployment.inspect import Seen, inspect
from warmpath.cli.findings import sentences
from warmpath.cli.tls_options import OptionError
from warmpath.client.failure import CallError
from warmpath.client.sync_client import Client
from warmpath.process.command_line import FINE, FOUND, USAGE, seconds
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.router.config.read import ConfigError, load
from warmpath.router.config.schema import Config

FEWEST_REQUESTS = 30
MOSTLY_TOLD = 0.5
"""The share of requests with an engine's cached tokens below which the doctor says that they are few."""


def main(argv: Sequence[str] | None = None) -> int:
    """Show findings, and check a deployment's parts; exit status 0: nothing is wrong, 1: something."""
    parser = router_parser("doctor", main.__doc__, "--config router.toml")
    parser.add_argument("--model", default="", help="only the pods of this model")
    parser.add_argument(
        "--config",
        type=Path,
        metavar="ROUTER.toml",
        help="also check engines, events, tokens, certificates and Redis that this file names; without "
        "--router the router is at its server.listen",
    )
    parser.add_argument(
        "--seconds", type=seconds_of, default=5.0, help="longest wait for an answer of a part"
    )
    args = parser.parse_args(argv)
    try:
        config = load(args.config, os.environ) if args.config else None
    except ConfigError as error:
        print(error, file=sys.stderr)
        return USAGE
    if config is not None and args.router == ROUTER:
        args.router = _near(config.server.listen)
    try:
        with open_client(args) as client:
            return _examine(client, args, config)
    except OptionError as error:
        print(f"warmpath: {error}", file=sys.stderr)
        return USAGE


def _near(listen: str) -> str:
    return re.sub(r"^(0\.0\.0\.0|\[::\])?:", "127.0.0.1:", listen)


def _examine(client: Client, args: argparse.Namespace, config: Config | None) -> int:
    checks: list[Check] = []
    pods, diagnosis = pb.ListPodsResponse(), pb.DiagnoseResponse()
    seen = Seen({}, {})
    try:
        pods, diagnosis = client.pods(args.model), client.diagnose(args.model)
    except CallError as error:
        if config is None:
            return failed(error, args)
        text = problem_of_call(error, args)
        checks.append(Check("router", "answer", "WRONG", text, "or change server.listen"))
    else:
        if config is not None:
            checks.append(Check("router", "answer", "ok", f"answers at {args.router}"))
            seen = _seen(client, pods, config, args.model)
    if config is not None:
        checks += inspect(
            config, args.config, seen, model=args.model, seconds=args.seconds, now=datetime.now(UTC)
        )
    if args.json:
        fields = fields_of(pods) | fields_of(diagnosis)
        print(json.dumps(fields | {"checks": [one._asdict() for one in checks]}))
    else:
        for one in checks:
            print(one.line)
        print_rich(_report(pods, diagnosis, is_well=not _wrong(checks)))
    return FOUND if diagnosis.findings or _wrong(checks) else FINE


def _wrong(checks: Sequence[Check]) -> bool:
    return any(one.verdict == "WRONG" for one in checks)


def _seen(client: Client, pods: pb.ListPodsResponse, config: Config, model: str) -> Seen:
    models = {pod.model for pod in pods.pods} & {one.name for one in config.models}
    return Seen(
        {pod.id: pod for pod in pods.pods},
        {
            name: {form: ask_router(client, name, form) for form in FORMS}
            for name in sorted(models)
            if not model or name == model
        },
    )


def _report(
    pods: pb.ListPodsResponse, diagnosis: pb.DiagnoseResponse, *, is_well: bool
) -> RenderableType:
    parts: list[RenderableType] = []
    if diagnosis.attributions:
        parts.append(_attributions(diagnosis.attributions))
    parts += [Text(sentence) for sentence in _untold(diagnosis.attributions)]
    parts += [Text(_saved(one)) for one in diagnosis.shadows if one.requests]
    parts += [Text(sentence) for sentence in sentences(diagnosis.findings)]
    if not diagnosis.findings and is_well:
        reported = sum(one.reported_requests for one in diagnosis.attributions)
        parts.append(
            Text(
                f"Nothing looks wrong. Pods: {len(pods.pods):,}; reports with an engine's "
                f"cached tokens: {reported:,}."
            )
        )
    return Group(*parts)


def _untold(rows: Sequence[pb.Attribution]) -> Iterator[str]:
    requests = sum(one.requests for one in rows)
    told = sum(one.reported_requests for one in rows)
    if requests >= FEWEST_REQUESTS and told < MOSTLY_TOLD * requests:
        yield (
            f"{told:,} of {requests:,} requests told how many tokens the engine found cached, and only "
            'they are compared: streams need stream_options {"include_usage": true}, vLLM the option '
            "--enable-prompt-tokens-details, SGLang --enable-cache-report."
        )


def _attributions(rows: Sequence[pb.Attribution]) -> Table:
    table = new_table(
        "pod, model, >requests, >tokens, >available, >captured, >reported, >predicted, >delivered",
        caption="available: held by any pod; captured: by the picked one (where a prompt was not "
        "tokenised, its tokens are estimated from its length); predicted and delivered: of the requests "
        "whose report says what the engine found, as shares of the tokens that the engine counted",
        caption_justify="left",
    )
    for one in sorted(rows, key=lambda one: (one.model, one.pod)):
        table.add_row(
            Text(one.pod), Text(one.model), f"{one.requests:,}", f"{one.prompt_tokens:,}",
            _share(one.available_tokens, one.prompt_tokens),
            _share(one.captured_tokens, one.prompt_tokens), f"{one.reported_requests:,}",
            _share(one.predicted_tokens, one.reported_prompt_tokens),
            _share(one.delivered_tokens, one.reported_prompt_tokens),
        )  # fmt: skip
    return table


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else "-"


def _saved(one: pb.Shadow) -> str:
    chosen = _share(one.chosen_tokens, one.prompt_tokens)
    ours = _share(one.warmpath_tokens, one.prompt_tokens)
    saved = (one.chosen_ttft - one.warmpath_ttft) / one.requests
    when = f"{seconds(abs(saved))} {'earlier' if saved > 0 else 'later'} on average"
    if abs(saved) < 0.0005:
        when = "as soon"
    return (
        f"{one.model}, in shadow: of {one.requests:,} requests {one.agreed:,} went where warmpath "
        f"would have sent them. Where they went {chosen} of their tokens were cached, with "
        f"warmpath's choice {ours}; the predicted first token comes {when}."
    )
