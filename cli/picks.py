"""`warmpath explain` and `warmpath decisions`: show why a running router makes its picks."""

import sys
from collections.abc import Sequence
from datetime import UTC, datetime

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from warmpath.cli.asking import add_prompt, call, call_with_prompt, router_parser
from warmpath.cli.console import TRUST, new_table, trust_words
from warmpath.process.command_line import USAGE, seconds
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb

NO_PICKS = "no picks: the router has made none since its start, or none that fits the options"


def explain_main(argv: Sequence[str] | None = None) -> int:
    """Show what each pod would cost for a prompt, and why the first one wins. Books nothing."""
    parser = router_parser("explain", explain_main.__doc__, "--model demo 'Once upon a time'")
    add_prompt(parser)
    parser.add_argument("--session", default="", help="the session's id")
    parser.add_argument("--policy", default="", help="the configured one by default")
    parser.add_argument(
        "--priority", default="", help="its class in the queue; the usual one by default"
    )
    parser.add_argument("--tenant", default="", help="its tenant in the queue")
    parser.add_argument(
        "--disaggregated", action="store_true", help="one pod for the prefill and one for decoding"
    )
    args = parser.parse_args(argv)
    return call_with_prompt(
        "explain",
        args,
        lambda client, prompt: client.explain(
            prompt, pods=args.pod, policy=args.policy, session=args.session,
            disaggregated=args.disaggregated, priority=args.priority, tenant=args.tenant,
        ),
        _explained,
    )  # fmt: skip


def decisions_main(argv: Sequence[str] | None = None) -> int:
    """List the last picks, newest first, with reasons and outcomes. No prompt is kept."""
    parser = router_parser("decisions", decisions_main.__doc__, "--limit 5 --model demo")
    parser.add_argument(
        "--limit", type=int, default=20, help="how many to list at most; 0: all; 20 by default"
    )
    parser.add_argument("--model", default="", help="only those of this model")
    parser.add_argument("--pod", default="", help="only those that chose this pod")
    parser.add_argument("--session", default="", help="only this session's and its sub-agents'")
    args = parser.parse_args(argv)
    if not 0 <= args.limit < 1 << 32:
        print(f"warmpath decisions: --limit: {args.limit} is not 0 to 4294967295", file=sys.stderr)
        return USAGE
    return call(
        args,
        lambda client: client.decisions(
            args.limit, model=args.model, pod=args.pod, session=args.session
        ),
        _decisions,
    )


def _explained(response: pb.ExplainResponse) -> RenderableType:
    title = (
        f"{response.prompt_tokens:,} tokens, policy {response.policy}, "
        f"utilisation {response.utilisation:.0%}"
    )
    parts: list[RenderableType] = [_candidates(title, response.candidates)]
    if response.decode_candidates:
        parts.append(_candidates("where to decode", response.decode_candidates))
    parts.append(Text(response.reason))
    if response.reckoned_because:
        estimated = f"{response.reckoned_tokens:,} of its tokens are estimated from its length"
        parts.append(Text(f"{estimated}: {response.reckoned_because}."))
    if response.HasField("source"):
        source = response.source
        parts.append(
            Text(f"{_name(source)} holds {source.matched_tokens:,} tokens that could be pulled.")
        )
    return Group(*parts)


def _candidates(title: str, candidates: Sequence[pb.Candidate]) -> Table:
    table = new_table(
        "#, pod, >matched, >counted, >wait, >prefill, >in flight, >cost, terms, load, trust",
        title=title,
        title_justify="left",
    )
    for place, one in enumerate(candidates, 1):
        details, is_exact = one.details, one.trust.level == pb.Trust.EXACT
        table.add_row(
            str(place),
            Text(_name(one)),
            _matched(one),
            f"{details.counted_tokens:,}",
            seconds(details.wait_seconds) if details.wait_seconds else "-",
            seconds(details.prefill_seconds) + _slower(details.calibration),
            _in_flight(details),
            _figure(one.cost),
            ", ".join(f"{term.name} {_figure(term.value)}" for term in details.terms if term.value)
            or "-",
            _load(details),
            Text("exact", TRUST["exact"]) if is_exact else trust_words(one.trust),
        )
    return table


def _name(one: pb.Candidate | pb.Source | pb.Decision) -> str:
    return f"{one.pod} rank {one.rank}" if one.rank else one.pod


def _matched(one: pb.Candidate) -> str:
    details = one.details
    parts = [f"{tier.tier} {tier.tokens:,}" for tier in details.tiers]
    if details.arriving_tokens:
        parts.append(f"arriving {details.arriving_tokens:,}")
    if details.assumed_tokens:
        parts.append(f"assumed {details.assumed_tokens:,}")
    return f"{one.matched_tokens:,}" + (f" ({', '.join(parts)})" if parts else "")


def _in_flight(details: pb.CandidateDetails) -> str:
    waiting = f" ({details.waiting:,} waiting)" if details.waiting else ""
    return f"{details.in_flight:,}{waiting}"


def _figure(value: float) -> str:
    """Return a cost, in any unit, with three significant digits or, from 1000, as an integer."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _slower(calibration: float) -> str:
    return f" (x{calibration:.2g})" if abs(calibration - 1) >= 0.05 else ""


def _load(details: pb.CandidateDetails) -> str:
    source = details.load_source or "-"
    if not details.HasField("load_age"):
        return source
    return f"{source}, {details.load_age:.1f} s old: queue {details.queue:,}, KV {details.kv_usage:.0%}"


def _decisions(response: pb.ListDecisionsResponse) -> RenderableType:
    if not response.decisions:
        return Text(NO_PICKS)
    table = new_table(
        "at (UTC), model, >tokens, pod, >cached, >first token, state, why",
        caption="cached, first token: predicted / reported (?: no report has told it)",
        caption_justify="left",
    )
    for one in response.decisions:
        first = one.candidates[0]
        cached = f"{one.cached_tokens:,}" if one.HasField("cached_tokens") else "?"
        ttft = seconds(one.ttft) if one.HasField("ttft") else "?"
        table.add_row(
            datetime.fromtimestamp(one.at, UTC).strftime("%H:%M:%S.%f")[:-3], Text(one.model),
            f"{one.prompt_tokens:,}", Text(_went(one, first)),
            f"{first.matched_tokens:,} / {cached}",
            f"{seconds(first.predicted_ttft)} / {ttft}",
            pb.Decision.State.Name(one.state).lower().replace("_", " "), Text(one.reason),
        )  # fmt: skip
    return table


def _went(one: pb.Decision, first: pb.Candidate) -> str:
    went = _name(one)
    text = _name(first) if went in ("", _name(first)) else f"{_name(first)}, went to {went}"
    return f"{text} (shadow)" if one.shadow else text
