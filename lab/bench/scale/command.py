"""What a router and Redis cost, in processor time and memory: calls, events, ranks, blocks."""

from warmpath.lab.bench.figure import Figure
from warmpath.lab.bench.scale import calls, picks, shared


def measure(*, quick: bool) -> list[Figure]:
    """Measure calls beside events, the shared index, and picks by the number of ranks."""
    return [*calls.measure(quick=quick), *shared.measure(quick=quick), *picks.measure(quick=quick)]
