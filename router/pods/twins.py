"""Finds pods that are one engine: of one model, with one address and a rank in common."""

from collections.abc import Iterable, Iterator

from warmpath.router.config.schema import PodSpec

FoundBy = tuple[str, PodSpec]
"""The name of the place where a pod is found, and the pod."""


def twins(pods: Iterable[FoundBy]) -> Iterator[tuple[FoundBy, FoundBy]]:
    """Yield each pod that is the same engine as an earlier one, and the earlier one."""
    known: dict[tuple[str, str, int], FoundBy] = {}
    for pod in pods:
        _, spec = pod
        ranks = range(spec.first_rank, spec.first_rank + spec.ranks)
        engine = [(spec.model, spec.address, rank) for rank in ranks]
        if twin := next((known[rank] for rank in engine if rank in known), None):
            yield pod, twin
        known |= dict.fromkeys(engine, pod)


def of_twin(address: str, twin: FoundBy) -> str:
    """Return the sentence that a pod's address is also the address of its twin."""
    place, spec = twin
    return (
        f"{address!r} is also the address of pod {spec.id!r} of {place}, of the same model: one "
        "engine is taken for two, and neither is known to have the other's load"
    )
