"""Compares the figures of policies in one place (`StudyPlace`) and over all places.

The tables call a place a cell, which is wider than `cell.Cell`, the settings of a single run.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from warmpath.lab.simulate.figures import Figures
from warmpath.lab.simulate.study import BEST_PUBLISHED, POOLED, PUBLISHED

_REACH = {
    "request": "in turn",
    "session": "those of a session (the log's, or else one guessed from prompts' blocks) the same one",
}

STEADY = 2.0
"""Traffic is steady if it lasts this many times as long as an answer (p90)."""

StudyPlace = tuple[str, str, int, int, str]
"""Trace, engine, pods, blocks per pod and load or pace: a `Cell` without its policy and seed."""


def by_cell(rows: Iterable[Figures]) -> dict[StudyPlace, dict[str, list[Figures]]]:
    """Return the rows of each place by policy: one row for each seed."""
    cells: dict[StudyPlace, dict[str, list[Figures]]] = {}
    for row in rows:
        # In a closed loop the load is what the policy lets it be.
        pace = row.pace or f"load {row.load:g}"
        place = (row.trace, row.engine, row.pods, row.blocks_per_pod, pace)
        cells.setdefault(place, {}).setdefault(row.policy, []).append(row)
    return cells


def median(rows: Sequence[Figures], name: str) -> float:
    """Return the median of a figure over seeds."""
    return float(statistics.median(getattr(row, name) for row in rows))


def title(place: StudyPlace) -> str:
    """Return a place's name."""
    trace, engine, pods, blocks, pace = place
    return f"{trace}, engine {engine}: {pods} pods x {blocks:,} blocks, {pace}"


def conditions(settings: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each unusual setting of a run (`Figures.settings`): a fault, say."""
    of = settings
    factors, reach = ", ".join(f"{one:g}" for one in of["factors"]), _REACH[of["routers_by"]]
    found = (
        (
            of["no_events_share"],
            f"The events of {of['no_events_share']:.0%} of the pods never come.",
        ),
        (
            of["estimate_factor"] != 1,
            f"The router expects prefill to last {of['estimate_factor']:g} times as long as it does.",
        ),
        (of["factors"], f"Pods take {factors} times as long for everything."),
        (of["reports"] == "ends", "First tokens are not reported."),
        (of["reports"] == "none", "Neither first tokens nor ends are reported."),
        (of["report_delay"], f"Reports reach the router {of['report_delay']:g} s late."),
        (of["lost_reports"], f"The reports of {of['lost_reports']:.0%} of the requests are lost."),
        (
            of["routers"] > 1,
            f"Requests reach {of['routers']} routers, {reach}; their bookings are {of['bookings']}.",
        ),
        (of["engine_priority"], "Engines begin prompts by the answers' engine_priority."),
        (of["outage"], f"The first pod is dead for {of['outage']:g} s."),
        (of["scale"], f"A started pod serves after {of['cold_start']:g} s."),
        (of["wave"], f"The rate of arrivals is a wave of {of['wave']:.0%} up and down."),
        (of["raw_bursts"], "Requests of one time stamp come at once."),
    )
    return [sentence for is_so, sentence in found if is_so]


def remarks(policies: Mapping[str, Sequence[Figures]]) -> list[str]:
    """Return sentences that a reader of a place's figures should know."""
    rows = [row for of_policy in policies.values() for row in of_policy]
    sentences = []
    if said := _crowd(rows):
        sentences.append(said)
    if any(row.settings["queue"] and row.settings["reports"] != "all" for row in rows):
        sentences.append("The queue holds nothing without reported first tokens.")
    if refused := rows[0].refused:
        sentences.append(f"{refused:,} requests fit into no pod and were left out.")
    return sentences


def _crowd(rows: Sequence[Figures]) -> str:
    """Return a sentence where requests come faster than answers end; empty for steady traffic."""
    if rows[0].pace:
        return ""
    least = min(rows, key=lambda row: row.e2e_p90_s)
    answer = least.e2e_p90_s
    if least.arrivals_s >= STEADY * answer:
        return ""
    return (
        f"The {least.requests:,} requests come within {least.arrivals_s:.0f} s, while an answer takes "
        f"up to {answer:.0f} s (p90): that is a crowd before an empty fleet, no steady traffic. More "
        "requests show which load the fleet can do."
    )


def ratio(policies: Mapping[str, Sequence[Figures]], policy: str, name: str) -> float | None:
    """Return a policy's figure over BEST_PUBLISHED's; None if that did not run or is 0."""
    if BEST_PUBLISHED not in policies:
        return None
    base = median(policies[BEST_PUBLISHED], name)
    return median(policies[policy], name) / base if base else None


def ratios_to(rows: Iterable[Figures]) -> str:
    """Return a sentence that names the policy to which ratios refer."""
    if any(row.policy == BEST_PUBLISHED for row in rows):
        return f"Ratios are to {BEST_PUBLISHED}; over several cells they are geometric means."
    return f"There are no ratios, since {BEST_PUBLISHED}, to which they refer, did not run."


def hit_share(rows: Sequence[Figures]) -> float | None:
    """Return the median share of the ceiling; None if the ceiling is 0."""
    return median(rows, "hit_share") if rows[0].ceiling else None


@dataclass(frozen=True, slots=True)
class PolicyStanding:
    """One policy's figures over all places in which it ran (`StudyPlace`).

    Ratios are geometric means over these places, except `worst_ratio`, which is the largest. A figure is
    None where no place has it.
    """

    policy: str
    cells: int
    p90_ratio: float | None
    """Ratio of the p90 to that of the study's best published policy."""
    p99_ratio: float | None
    best_ratio: float | None
    """Ratio of the p90 to that of the place's best published policy, among those that ran there."""
    worst_ratio: float | None
    """The largest of the ratios whose mean is `best_ratio`."""
    hit_share: float | None
    """The mean share of the ceiling."""
    least_hit_share: float | None


def standings(cells: Mapping[StudyPlace, Mapping[str, Sequence[Figures]]]) -> list[PolicyStanding]:
    """Return every policy's standing, the least time to first token first."""
    policies = dict.fromkeys(policy for one in cells.values() for policy in one)
    found = [
        _standing(policy, [one for one in cells.values() if policy in one]) for policy in policies
    ]
    return sorted(found, key=lambda one: (one.p90_ratio or one.best_ratio or 0.0, one.policy))


def _standing(policy: str, cells: Sequence[Mapping[str, Sequence[Figures]]]) -> PolicyStanding:
    shares = [found for cell in cells if (found := hit_share(cell[policy])) is not None]
    to_best = [found for cell in cells if (found := _to_best(cell, policy)) is not None]
    return PolicyStanding(
        policy,
        len(cells),
        p90_ratio=_mean(ratio(cell, policy, "ttft_p90_s") for cell in cells),
        p99_ratio=_mean(ratio(cell, policy, "ttft_p99_s") for cell in cells),
        best_ratio=_mean(to_best),
        worst_ratio=max(to_best, default=None),
        hit_share=statistics.fmean(shares) if shares else None,
        least_hit_share=min(shares, default=None),
    )


def _to_best(cell: Mapping[str, Sequence[Figures]], policy: str) -> float | None:
    peers = [
        median(rows, "ttft_p90_s") for name, rows in cell.items() if name in PUBLISHED.values()
    ]
    best = min(peers, default=0.0)
    return median(cell[policy], "ttft_p90_s") / best if best else None


def _mean(ratios: Iterable[float | None]) -> float | None:
    known = [one for one in ratios if one]
    return statistics.geometric_mean(known) if known else None


def shown(value: float | None, digits: int = 2) -> str:
    """Return a number for a table; a dash for None."""
    return "-" if value is None else f"{value:.{digits}f}"


CELL_HEAD = (
    "policy", "TTFT p50 s", "p90 s", "p99 s", "p90 ratio", "hit", "of ceiling", "TPOT p90 ms",
    "e2e p90 s", "tokens/s", "imbalance", "busy", "pod h", "session p50 x", "p90 x",
)  # fmt: skip
"""The last two are the times of a closed loop's sessions over their times alone; dashes without one."""


def cell_rows(policies: Mapping[str, Sequence[Figures]]) -> list[tuple[str, ...]]:
    """Return the rows of a place's table, the least p90 first."""
    order = sorted(policies, key=lambda policy: median(policies[policy], "ttft_p90_s"))
    found: list[tuple[str, ...]] = []
    for policy in order:
        rows = policies[policy]
        found.append(
            (
                f"{policy} (bound)" if policy == POOLED else policy,
                shown(median(rows, "ttft_p50_s")),
                shown(median(rows, "ttft_p90_s")),
                shown(median(rows, "ttft_p99_s")),
                shown(ratio(policies, policy, "ttft_p90_s")),
                shown(median(rows, "token_hit_ratio"), 3),
                shown(hit_share(rows), 3),
                shown(median(rows, "tpot_p90_ms"), 1),
                shown(median(rows, "e2e_p90_s"), 1),
                shown(median(rows, "output_tokens_per_s"), 0),
                shown(median(rows, "imbalance")),
                shown(median(rows, "utilisation")),
                shown(median(rows, "pod_hours")),
                shown(median(rows, "slowed_p50") or None),
                shown(median(rows, "slowed_p90") or None),
            )
        )
    return found


STANDING_HEAD = (
    "policy", "cells", "p90 ratio", "p99 ratio", "p90 to each cell's best", "worst of these",
    "hit of ceiling", "least of these",
)  # fmt: skip


def standing_rows(found: Iterable[PolicyStanding]) -> list[tuple[str, ...]]:
    """Return the rows of the table over all places."""
    return [
        (
            f"{one.policy} (bound)" if one.policy == POOLED else one.policy,
            str(one.cells),
            shown(one.p90_ratio, 3),
            shown(one.p99_ratio, 3),
            shown(one.best_ratio, 3),
            shown(one.worst_ratio, 3),
            shown(one.hit_share, 3),
            shown(one.least_hit_share, 3),
        )
        for one in found
    ]
