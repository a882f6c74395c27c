"""Derives findings (likely faults and their reasons) from a pod's facts. Pure functions."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from warmpath.indexer.engines.table import ENGINES
from warmpath.indexer.shared.records.registry import AWAY, NOBODY
from warmpath.indexer.shared.redis.command import OUT_OF_MEMORY, is_explained
from warmpath.indexer.trust import BEHIND, DRIFTED, Level, Trust
from warmpath.router.diagnosis.attribution import Evidence
from warmpath.router.diagnosis.mispredictions import (
    ENOUGH,
    MOSTLY,
    Finding,
    PodFacts,
    RankFacts,
    mispredictions,
)
from warmpath.router.peers.exchange import PeerBookings
from warmpath.router.pods.discover import SourceState, Trouble
from warmpath.router.readiness import Readiness

TRUST_SECONDS = 60.0
"""Time after which a trust that is not exact is a finding: restarts, snapshots and replays take less."""
LAG_SECONDS = 10.0
"""Age from which on a lag of events is a finding: a burst is over by then."""
LEASE_SECONDS = 10.0
"""Age from which on an unclaimed pod, or an unreachable shared index, is a finding: a restarted
publisher has claimed its pod by then."""
FAR = 4.0
"""Factor between real and predicted prefill times that is a finding: 2 would change few choices."""
APART = 2.0
"""Factor between a rank's prefill times and those of its model's typical pod that is a finding."""

UNSHARED = "bookings are not shared with other routers, so picks know of this router's own only"
LOOK_AT_REDIS = "look whether Redis runs, has room, and can be reached from here (shared-index.url)"


@dataclass(frozen=True, slots=True)
class RouterFacts:
    """The state of the router itself."""

    readiness: Readiness
    sources: Sequence[SourceState]
    """The places where pods are found."""
    peers: PeerBookings | None
    """The bookings that are shared with other routers; None: none are."""
    disagreements: Mapping[str, str]
    """By model, where `fastokens` gave other ids than `tokenizers`; changes while the router runs."""


def router_findings(facts: RouterFacts, now: float) -> Iterator[Finding]:
    """Yield the findings about the router itself; `now` is a time of its sources' clock."""
    for name, condition in facts.readiness.report().items():
        if facts.readiness.requires(name) and not condition.holds:
            text = (
                f"the router is not ready, so gateways may pass over it: {name}: {condition.reason}"
            )
            yield Finding("readiness", text)
    troubles = [
        (source.name, source.model, source.trouble, f". It spoke {source.silence:.0f} s ago")
        for source in facts.sources
    ]
    if (peers := facts.peers) is not None and peers.problem:
        advice = "" if is_explained(peers.problem) else LOOK_AT_REDIS
        unshared = Trouble(peers.problem_since, peers.problem, UNSHARED, advice)
        troubles.append(("bookings of other routers", "", unshared, ""))
    if peers is not None and (problem := peers.received.seed_problem):
        yield Finding("hash-seed", f"{problem}. Do this: give all routers one index.hash-seed")
    for model, where in facts.disagreements.items():
        text = (
            f"fastokens does not encode as tokenizers does ({where}), so tokenizers alone encodes its "
            "texts: exact, but slower. Do this: tell warmpath's maintainers the model's name"
        )
        yield Finding("encoder", text, model)
    for name, model, trouble, spoke in troubles:
        if trouble is not None:
            text = f"{name} cannot be asked for {now - trouble.since:.0f} s: {trouble.problem}"
            advice = f". Do this: {trouble.advice}" if trouble.advice else ""
            yield Finding("source", f"{text}; {trouble.effect}{advice}{spoke}", model)


def findings(facts: PodFacts) -> list[Finding]:
    """Return the findings about a pod."""

    def each(kind: str, judge: Callable[[RankFacts], Iterator[str]]) -> list[Finding]:
        return [Finding(kind, text) for rank in facts.ranks for text in judge(rank)]

    view = each("hash-seed", _keyspace)[:1]
    view += each("shared-index", partial(_shared, facts))[:1] or each(
        "trust", partial(_trust, facts)
    )
    view += each("lag", _lag)[:1] + each("drift", _drift)[:1]
    return [
        *view, *_key(facts), *each("stuck", _stuck), *_unknown_load(facts),
        *each("load", _bad_figures)[:1], *_calibration(facts), *_reports(facts.row.evidence),
        *mispredictions(facts, is_doubtful=bool(view)),
    ]  # fmt: skip


def is_other_keyspace(trust: Trust) -> bool:
    """Return whether the publisher refuses this router, since their keyspaces differ."""
    return trust.level is not Level.EXACT and "keyspace:" in trust.reason


def _keyspace(rank: RankFacts) -> Iterator[str]:
    if is_other_keyspace(rank.trust):
        yield f"its publisher refuses this router: {rank.trust.reason}"


def _is_doubtful(rank: RankFacts, seconds: float) -> bool:
    """Return whether a rank is not exact for so long, and not by the fault of its keyspace."""
    is_long = rank.trust.level is not Level.EXACT and rank.inexact_seconds >= seconds
    return is_long and not is_other_keyspace(rank.trust)


def _shared(facts: PodFacts, rank: RankFacts) -> Iterator[str]:
    """Tell if the shared index is unreachable or full, or lacks this pod."""
    reason, where = rank.trust.reason, facts.shared
    if not where or not _is_doubtful(rank, LEASE_SECONDS):
        return
    if reason.startswith(NOBODY):
        yield (
            f"no publisher has written it to the shared index at {where} for "
            f"{rank.trust_seconds:.0f} s: start its publisher with that address as --redis; or, if it "
            "runs, look at its log: Redis may refuse its writes"
        )
    elif reason.startswith(OUT_OF_MEMORY):
        yield (
            f"the Redis of the shared index ({where}) is full and refuses its publisher's writes: "
            f"{_inexact(rank)}. Do this: raise maxmemory in Redis"
        )
    elif reason.startswith(AWAY) and not is_explained(reason):
        yield (
            f"the shared index is {where}; {_inexact(rank)}. Do this: look whether Redis runs, and "
            "whether this process reaches it"
        )
    elif rank.trust.level is not Level.DEGRADED or reason.startswith(AWAY):
        yield f"the shared index is {where}; {_inexact(rank)}"


def _trust(facts: PodFacts, rank: RankFacts) -> Iterator[str]:
    trust, requests = rank.trust, facts.row.requests
    is_told_elsewhere = trust.reason.startswith((BEHIND, DRIFTED))
    if not facts.has_events or is_told_elsewhere or not _is_doubtful(rank, TRUST_SECONDS):
        return
    if trust.level is not Level.COLD:
        advice = f". Do this: look whether it runs, with `{facts.events_option}`"
        is_stale = trust.level is Level.STALE and facts.events_option
        yield f"its events are not complete: {_inexact(rank)}{advice if is_stale else ''}"
    elif requests >= ENOUGH:
        yield (
            f"no events arrive from rank {rank.number}, though {requests} requests were sent to the "
            f"pod: {trust.reason}"
        )


def _inexact(rank: RankFacts) -> str:
    """Return how far a rank may be believed, for how long it has not been exact, and why."""
    seconds, reason = rank.inexact_seconds, rank.trust.reason.rstrip(".")
    return f"rank {rank.number} is {rank.trust.level}, and not exact for {seconds:.0f} s: {reason}"


def _lag(rank: RankFacts) -> Iterator[str]:
    if BEHIND in rank.trust.reason and rank.trust_seconds >= LAG_SECONDS:
        batches = f" ({rank.lag_batches} batches wait here)" if rank.lag_batches else ""
        yield (
            f"the events of rank {rank.number} have been applied late for {rank.trust_seconds:.0f} s"
            f"{batches}, so the view of its cache is old: they arrive faster than they are applied, "
            "because of their number or form, or because this machine or the network is too slow"
        )


def _drift(rank: RankFacts) -> Iterator[str]:
    if rank.drifts or rank.trust.reason.startswith(DRIFTED):
        often = f", {rank.drifts} times since the router started" if rank.drifts > 1 else ""
        has = f" ({rank.capacity})" if rank.capacity else ""
        yield (
            f"more blocks were announced on rank {rank.number} than its cache has{has}{often}: "
            "requests with kv_cache_report_mode full announce hits as stores, so that blocks are "
            "shown after they are gone; or the configured `blocks` is less than the cache has"
        )


def _key(facts: PodFacts) -> Iterator[Finding]:
    if facts.refusal:
        yield Finding("key", f"the router cannot read all of its engine's pages: {facts.refusal}")


def _stuck(rank: RankFacts) -> Iterator[str]:
    if rank.stuck_seconds:
        yield (
            f"rank {rank.number} has answered nothing for {rank.stuck_seconds:.0f} s, several times "
            "as long as predicted, though requests were sent to it: picks avoid it until it "
            "answers, whatever its health and metrics say. Do this: look whether its engine hangs "
            "or is paused"
        )


def _unknown_load(facts: PodFacts) -> Iterator[Finding]:
    if facts.is_well and not any(rank.has_load or rank.stuck_seconds for rank in facts.ranks):
        option = ENGINES[facts.engine].metrics_option
        advice = f". Do this: start it {option}, or report its load" if option else ""
        yield Finding(
            "load",
            "its load is not known: its metrics cannot be read or have none of its engine's names, "
            f"and no gateway reports its load; only this router's own bookings count{advice}",
        )


def _bad_figures(rank: RankFacts) -> Iterator[str]:
    if rank.has_load and rank.bad_figures:
        lacking = ", ".join(rank.bad_figures)
        yield f"the metrics of rank {rank.number} lack a possible figure for {lacking}: it counts as 0"


def _calibration(facts: PodFacts) -> Iterator[Finding]:
    for number, factor in sorted(facts.row.evidence.factors.items()):
        if factor >= APART * facts.typical_factor and factor > APART:
            yield Finding(
                "calibration",
                f"prefills on rank {number} take {factor / facts.typical_factor:.1f} times as long "
                "as on the model's typical pod: it is throttled, shared, or of another kind",
            )
            return
        if not 1 / FAR < factor < FAR:
            yield Finding(
                "calibration",
                f"prefills on rank {number} take {factor:.2g} times as long as the cost model says: "
                "multiply pick.prefill-base-seconds, pick.prefill-token-seconds and "
                "pick.prefill-context-seconds by that",
            )
            return


def _reports(evidence: Evidence) -> Iterator[Finding]:
    if evidence.ends >= ENOUGH and evidence.expired > MOSTLY * evidence.ended:
        yield Finding(
            "reports",
            f"{evidence.expired / evidence.ended:.0%} of its last requests were never reported as "
            "finished or failed: they stay booked until booking.expire-seconds have passed",
        )
