"""Decides which ranks may take a request, or why none may; for roles `router.pick.weigh` does."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from weakref import ref

from warmpath.indexer.index.slot import RankName
from warmpath.indexer.rank import Rank
from warmpath.router.pods.table import Pod, PodTable, Role, that_serve


class Wanted(NamedTuple):
    """The pods that a request wants."""

    model: str
    lora: str = ""
    named: Sequence[str] = ()
    """Ids of pods, in a tuple; empty: all pods of the model."""
    disaggregated: bool = False
    """Whether one pod shall prefill and another one decode."""


class NoPodError(Exception):
    """No pod can be picked; the message has the reason."""

    def __init__(self, reason: str, wanted: Wanted | None = None) -> None:
        super().__init__(reason)
        self.wanted = wanted
        """The pods of which none may be picked now; None: their roles are the reason."""


class Seat(NamedTuple):
    """What is told of a rank. It keeps no Pod and no Rank alive: a kept decision may outlive them."""

    name: RankName
    address: str
    serves: bool
    """Whether its pod was healthy (`Pod.serves`)."""
    engine_rank: int
    """The number by which its engine knows the rank."""
    is_alone: bool
    """Whether its pod has no other rank."""
    pod: ref[Pod]
    rank: ref[Rank]


@dataclass(frozen=True, slots=True, eq=False)
class Field:
    """The ranks of some pods. All sequences have the ranks in the same order."""

    of: Sequence[Pod]
    pods: Sequence[Pod]
    """The pod of each rank."""
    ranks: Sequence[Rank]
    seats: Sequence[Seat]
    names: Sequence[RankName]
    """Pod and number of each rank."""
    places: Mapping[RankName, int]
    """The index of each name in the sequences."""
    place_of: Mapping[Rank, int]
    has_ranks: bool
    """Whether some pod has several."""
    left_out: Sequence[RankName] = ()
    """The ranks that are avoided, since there are others."""
    _parts: "dict[Role, tuple[Collection[RankName], Field]]" = field(default_factory=dict)
    """The last part for each role: the next request mostly wants the same."""

    def part(self, role: Role, avoided: Collection[RankName]) -> "Field":
        """Return the ranks with a role, those in `avoided` only if there are no others."""
        if role == "both" and not avoided:
            return self
        kept = self._parts.get(role)
        if kept is None or kept[0] != avoided:
            pods = (
                self.of
                if role == "both"
                else [one for one in self.of if one.role in {"both", role}]
            )
            kept = self._parts[role] = avoided, field_of(pods, avoided)
        return kept[1]


def field_of(pods: Sequence[Pod], avoided: Collection[RankName] = ()) -> Field:
    """Return the ranks of these pods, those in `avoided` only if there are no others."""
    all_of = [(pod, rank, RankName(pod.id, rank.number)) for pod in pods for rank in pod.ranks]
    both = [one for one in all_of if one[2] not in avoided] or all_of
    ranks, names = [rank for _, rank, _ in both], [name for *_, name in both]
    serving = {pod.id: pod.serves for pod in pods}
    return Field(
        list(pods),
        [pod for pod, *_ in both],
        ranks,
        [
            Seat(
                name,
                pod.address,
                serving[pod.id],
                pod.first_rank + name.number,
                len(pod.ranks) == 1,
                ref(pod),
                ref(rank),
            )
            for pod, rank, name in both
        ],
        names,
        {name: place for place, name in enumerate(names)},
        {rank: place for place, rank in enumerate(ranks)},
        any(len(pod.ranks) > 1 for pod in pods),
        [name for *_, name in all_of if name in avoided] if len(both) < len(all_of) else (),
    )


class Eligible:
    """Says which ranks of a table's pods may take a request."""

    def __init__(self, pods: PodTable) -> None:
        self._pods = pods
        self._last = field_of(())
        """The last request's field; the next request mostly has the same."""
        self._serve = True
        """Whether all pods of that field serve."""

    def __call__(self, wanted: Wanted) -> Field:
        """Return the ranks that may take a request. Raises NoPodError with the reason."""
        found, serve = _eligible(self._pods, wanted)
        if self._last.of != found or not (serve and self._serve):
            self._last, self._serve = field_of(found), serve
        return self._last


def _eligible(pods: PodTable, wanted: Wanted) -> tuple[list[Pod], bool]:
    """Return the pods that may take a request, and whether all serve; only named ones if any is named.

    They serve the model, unless its name is empty, and neither refuse requests (as a draining engine's
    /health does) nor are withheld by the source that has found them. Of these, the healthy ones take
    part if there are any, else all, as a pod's health may not be known yet; and of those, the ones that
    list the adapter if there are any. Where the request is disaggregated, this holds for the prefill's
    pods and for the decode's, each by itself.
    """
    model, lora, named, disaggregated = wanted
    found = pods.of_model(model)
    if not found:
        raise NoPodError(f"no pod {_serves(model)}", wanted)
    if named:
        ids = set(named)
        found = [pod for pod in found if pod.id in ids]
        if not found:
            raise NoPodError(f"none of the {len(ids)} named pods {_serves(model)}", wanted)
    willing = [pod for pod in found if not (pod.withheld or pod.status.refuses)]
    if not willing:
        why = next((f": {pod.id}: {pod.withheld}" for pod in found if pod.withheld), "")
        problem = f"every pod{model_phrase(model)} that may be picked refuses requests{why}"
        raise NoPodError(problem, wanted)
    if not disaggregated:
        return _best(willing, lora)
    parts = [
        _best([pod for pod in willing if pod.role in {"both", role}], lora)
        for role in ("prefill", "decode")
    ]
    best = {pod.id: pod for part, _ in parts for pod in part}
    return list(best.values()), all(serve for _, serve in parts)


def _best(willing: list[Pod], lora: str) -> tuple[list[Pod], bool]:
    """Return the healthy pods if any, and of those the ones with the adapter if any.

    Also return whether they are healthy.
    """
    serving = that_serve(willing)
    best = serving or willing
    # An engine may load an adapter on its first request, so pods that do not list it are a fall-back.
    able = [pod for pod in best if lora in pod.status.models] if lora else best
    return able or best, bool(serving) or not willing


def model_phrase(model: str) -> str:
    """Return the words " of 'MODEL'" for an error's message; empty where a request names no model."""
    return f" of {model!r}" if model else ""


def _serves(model: str) -> str:
    return f"serves {model!r}" if model else "is known"
