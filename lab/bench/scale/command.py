"""What a router and Redis cost by traffic and by the size of the fleet, in processor time and memory."""

from warmpath.lab.bench.figure import Figure
from warmpath.lab.bench.scale import calls, fleet, picks, shared, sizing


def measure(*, quick: bool) -> list[Figure]:
    """Measure calls, events, memory, Redis, picks and a large fleet; compute what fleets take."""
    figures = [
        *calls.measure(quick=quick),
        *shared.measure(quick=quick),
        *picks.measure(quick=quick),
        *fleet.measure(quick=quick),
    ]
    found = {one.name: one.value for one in figures}
    return [*figures, *sizing.measure(found, picks.sizes(quick=quick))]
