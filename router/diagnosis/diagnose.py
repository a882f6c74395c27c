"""The answer to Diagnose: attribution of cached tokens, shadow sums, and findings."""

from collections.abc import Callable, Iterable
from statistics import median

from warmpath.indexer.rank import Rank
from warmpath.indexer.trust import Level
from warmpath.process.loop import in_turns
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.router.diagnosis.attribution import Attribution, Row
from warmpath.router.diagnosis.findings import (
    RouterFacts,
    findings,
    is_other_keyspace,
    router_findings,
)
from warmpath.router.diagnosis.mispredictions import Finding, PodFacts, RankFacts
from warmpath.router.load.table import LoadTable
from warmpath.router.pods.table import Pod

ROWS_AT_ONCE, PODS_AT_ONCE = 256, 16
"""Rows and pods handled before other tasks get a turn: about two milliseconds' work."""

LATE = (
    "it may be overloaded ({}; probe.timeout-seconds): it is picked all the same, as its events or its "
    "answers to requests arrive, but its models and its metrics may be old. Do this: look whether the "
    "engine's HTTP server, or a proxy before it, is overloaded"
)


async def diagnose(
    model: str,
    pods: Iterable[Pod],
    attribution: Attribution,
    loads: LoadTable,
    *,
    blind: Iterable[Finding] = (),
    router: RouterFacts | None = None,
    clock: Callable[[], float],
) -> pb.DiagnoseResponse:
    """Diagnose the pods of `model`; empty: all pods. `clock` is the ingest's, in seconds.

    `blind` are the blind spots of all models, which come first; `router` has the router's own state.
    """
    rows = [row for row in attribution.rows() if row.model == model or not model]
    typical = _typical_factors(rows)
    response = pb.DiagnoseResponse(
        shadows=[row for row in attribution.shadow.rows() if row.model == model or not model]
    )
    async for row in in_turns(rows, ROWS_AT_ONCE):
        if row.requests or row.reported_requests:
            fields = pb.Attribution.DESCRIPTOR.fields_by_name
            response.attributions.add(**{name: getattr(row, name) for name in fields})
    of_router = router_findings(router, clock()) if router is not None else ()
    for one in (*blind, *of_router):
        if not model or one.model in ("", model):
            response.findings.add(model=one.model, kind=one.kind, text=one.text)
    exposed: dict[str, list[Pod]] = {}
    known = [pod for pod in pods if pod.model == model or not model]
    if not known:
        text = f"the router knows no pod{' of it' if model else ''}"
        response.findings.add(model=model, kind="pods", text=text)
    async for pod in in_turns(known, PODS_AT_ONCE):
        now = clock()
        if pod.exposed:
            exposed.setdefault(pod.model, []).append(pod)
        if not pod.ready:
            text = _still_picked(pod) or f"it is not ready: {_unready(pod)}"
            response.findings.add(pod=pod.id, model=pod.model, kind="ready", text=text)
        elif pod.status.is_late:
            text = LATE.format(pod.status.reason)
            response.findings.add(pod=pod.id, model=pod.model, kind="late", text=text)
        facts = PodFacts(
            pod.has_events, pod.status.healthy is True, [_facts(rank, loads, now) for rank in pod.ranks],
            attribution.row(pod.id, pod.model) or Row(pod.id, pod.model),
            typical_factor=typical.get(pod.model, 1.0), refusal=pod.status.refusal, shared=pod.shared,
            engine=pod.engine, events_option=pod.events_option,
        )  # fmt: skip
        for one in findings(facts):
            response.findings.add(pod=pod.id, model=pod.model, kind=one.kind, text=one.text)
    for name, those in exposed.items():
        text = (
            f"the events of {len(those)} pods cross the network in plain text (those of pod "
            f"{those[0].id} from {those[0].exposed}): run `warmpath publish` beside each engine and "
            "watch it over TLS; or, if nobody else is on that network, set events.trusted-network"
        )
        response.findings.add(model=name, kind="plain-text", text=text)
    return response


def _unready(pod: Pod) -> str:
    """Return its health if that is bad, and the reasons of its trust unless exact."""
    health = pod.withheld or ("" if pod.status.healthy else pod.status.reason)
    reasons = (rank.trust.reason for rank in pod.ranks if rank.trust.level is not Level.EXACT)
    said = "; ".join(dict.fromkeys(reason for reason in (health, *reasons) if reason))
    return said.rstrip(".")


def _still_picked(pod: Pod) -> str:
    """Return the finding on a healthy pod without events, which is still picked; empty for others."""
    if not (pod.status.healthy and pod.serves):
        return ""
    picked = f"({_unready(pod)}), so that it is picked by the prompts that were sent to it"
    if any(is_other_keyspace(rank.trust) for rank in pod.ranks):
        refused = "its publisher refuses this router, as the finding hash-seed says"
        return f"its events are not used {picked}: {refused}"
    lines = "Redis" if pod.shared else "the pod"
    option = "" if pod.shared else pod.events_option
    advice = f". Do this: start it with `{option}`" if option else ""
    more = f"The lines on {lines} in `warmpath doctor --config FILE` say more"
    return f"its events are not connected {picked}{advice}. {more}"


def _typical_factors(rows: Iterable[Row]) -> dict[str, float]:
    factors: dict[str, list[float]] = {}
    for row in rows:
        factors.setdefault(row.model, []).extend(row.evidence.factors.values())
    return {model: median(of) for model, of in factors.items() if of}


def _facts(rank: Rank, loads: LoadTable, now: float) -> RankFacts:
    counts = rank.counts()
    parts = loads.explain(rank.pod, rank.number, now)
    return RankFacts(
        number=rank.number,
        trust=rank.trust,
        trust_seconds=now - rank.trust.since,
        inexact_seconds=now - rank.inexact_since,
        block_size=rank.layout.block_size,
        blocks=sum(rank.blocks().values()),
        # A publisher sends the blocks held, not counts of stored and removed ones.
        stored=counts.get("stored_blocks", 0),
        removed=counts.get("removed_blocks", 0),
        has_load=any(part.is_observed for part in parts),
        bad_figures=loads.bad_figures(rank.pod, rank.number),
        stuck_seconds=loads.stuck_seconds(rank.pod, rank.number, now),
        capacity=rank.capacity,
        drifts=counts.get("drifts", 0),
        lag_batches=rank.lag_batches,
    )
