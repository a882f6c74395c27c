"""`warmpath doctor`: shows how good predictions and picks were, and likely faults."""

import argparse
import json
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from indexer.process.command_line import FINE, FOUND
from router.commands.client import answer, fields_of, print_rich, router_parser
from router.pb.warmpath.v1 import router_pb2 as pb
from scorer.reason import seconds


def main(argv: Sequence[str] | None = None) -> int:
    """Show findings; exit status 0: none, 1: some, 3: the router does not answer."""
    parser = router_parser("doctor", main.__doc__, "--model demo")
    parser.add_argument("--model", default="", help="only the pods of this model")
    args = parser.parse_args(argv)
    asked = _asked(args)
    if isinstance(asked, int):
        return asked
    pods, diagnosis = asked
    found = diagnosis.findings
    if args.json:
        print(json.dumps(fields_of(pods) | fields_of(diagnosis)))
    else:
        print_rich(_report(pods, diagnosis, found))
    return FOUND if found else FINE


def _asked(
    args: argparse.Namespace,
) -> tuple[pb.ListPodsResponse, pb.DiagnoseResponse] | int:
    """Return the router's answers, or the exit status if it gives none."""
    pods = answer(args, lambda client: client.pods(args.model))
    if isinstance(pods, int):
        return pods
    diagnosis = answer(args, lambda client: client.diagnose(args.model))
    return diagnosis if isinstance(diagnosis, int) else (pods, diagnosis)


def _report(
    pods: pb.ListPodsResponse, diagnosis: pb.DiagnoseResponse, found: Sequence[pb.Finding]
) -> RenderableType:
    parts: list[RenderableType] = []
    if diagnosis.attributions:
        parts.append(_attributions(diagnosis.attributions))
    parts += [Text(_saved(one)) for one in diagnosis.shadows if one.requests]
    parts += [Text(sentence) for sentence in _sentences(found)]
    if not found:
        reported = sum(one.reported_requests for one in diagnosis.attributions)
        parts.append(
            Text(
                f"Nothing looks wrong. Pods: {len(pods.pods):,}; reports with an engine's "
                f"cached tokens: {reported:,}."
            )
        )
    return Group(*parts)


def _attributions(rows: Sequence[pb.Attribution]) -> Table:
    table = Table(
        caption="available: held by any pod; captured: by the picked one; predicted and delivered: "
        "of the requests whose report says what the engine found",
        caption_justify="left",
    )
    for name in ("pod", "model"):
        table.add_column(name)
    for name in (
        "requests",
        "tokens",
        "available",
        "captured",
        "reported",
        "predicted",
        "delivered",
    ):
        table.add_column(name, justify="right")
    for one in sorted(rows, key=lambda one: (one.model, one.pod)):
        table.add_row(
            Text(one.pod),
            Text(one.model),
            f"{one.requests:,}",
            f"{one.prompt_tokens:,}",
            _share(one.available_tokens, one.prompt_tokens),
            _share(one.captured_tokens, one.prompt_tokens),
            f"{one.reported_requests:,}",
            _share(one.predicted_tokens, one.reported_prompt_tokens),
            _share(one.delivered_tokens, one.reported_prompt_tokens),
        )
    return table


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else "-"


def _saved(one: pb.Shadow) -> str:
    """Return the text about the time and tokens that following the shadow's picks would have saved."""
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


def _sentences(found: Sequence[pb.Finding]) -> list[str]:
    """Return the findings as sentences, grouped by kind, since one mistake often shows on all pods."""
    alike: dict[tuple[str, str, str], list[pb.Finding]] = {}
    for one in found:
        alike.setdefault((one.model, one.kind, "" if one.pod else one.text), []).append(one)
    sentences = []
    for (model, kind, _), ones in alike.items():
        first = ones[0]
        whose = " ".join(name for name in (model, first.pod) if name)
        others = ", ".join(dict.fromkeys(one.pod for one in ones[1:] if one.pod != first.pod))
        likewise = f" Likewise {others}." if others else ""
        sentences.append(f"{kind}: {whose}: {first.text}.{likewise}".replace(": : ", ": "))
    return sentences
