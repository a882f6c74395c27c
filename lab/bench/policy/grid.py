"""The grid: the places in which policies are compared, and the cells to run there.

A place is a `Cell` of the published baseline without a queue: traffic, engine, pods, cache and load.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from random import Random

from warmpath.lab.demo.traffic import CHATS
from warmpath.lab.simulate.cell import ENGINE_KINDS, Cell, EngineKind
from warmpath.lab.simulate.study import BEST_PUBLISHED, PUBLISHED
from warmpath.lab.simulate.traffic.generated import KINDS, Generated
from warmpath.scorer.policy import DEFAULT

PEERS = tuple(
    PUBLISHED[name]
    for name in (
        "llmd_token+spec",
        "lmetric+spec",
        "preble+spec",
        "llmd_ratio+spec",
        "band+spec",
        "dynamo+spec@ow=4",
        "approx",
        "sglang",
    )
)
"""Published policies that were the best of a place of the study, or are well known."""

PODS = (4, 8, 16)
BLOCKS = (1500, 10_000)
LOADS = (0.5, 0.6, 0.7, 0.8, 0.9)

NEAR = 1.2
"""A peer whose p90 is above this times the best one's with the first seed is run with no other seed."""


@dataclass(frozen=True, slots=True)
class Extent:
    """The extent of a run: the number of requests of each place, the seeds, and further traces."""

    requests: int
    seeds: Sequence[int]
    quick: bool = False
    traces: Sequence[Path] = ()

    def sources(self) -> Sequence[Path | Generated]:
        if self.quick:
            return [CHATS, Generated("reading")]
        return [*(self.traces or (CHATS,)), *(Generated(kind) for kind in KINDS)]

    def places(self) -> list[Cell]:
        """Return the places, in an order by chance: the first ones are a fair sample of all."""
        found = [
            self.place(source, engine, pods, blocks, load)
            for source, engine, pods, blocks, load in product(
                self.sources(), ENGINE_KINDS, PODS, BLOCKS, LOADS
            )
        ]
        if self.quick:
            found = [self.place(source, "serial", 4, 500, 0.7) for source in self.sources()]
        Random(1).shuffle(found)
        return found

    def place(
        self, source: Path | Generated, engine: EngineKind, pods: int, blocks: int, load: float
    ) -> Cell:
        return Cell(
            source,
            BEST_PUBLISHED,
            pods,
            blocks,
            load,
            engine=engine,
            requests=self.requests,
            seed=self.seeds[0],
        )


def ours(place: Cell) -> tuple[Cell, Cell]:
    """Return the cells of the default policy: without a queue, and with one."""
    return replace(place, policy=DEFAULT), replace(place, policy=DEFAULT, queue=True)


def first_round(places: Sequence[Cell]) -> Iterator[Cell]:
    """Yield the cells of all policies with the first seed."""
    for place in places:
        yield from ours(place)
        for peer in PEERS:
            yield replace(place, policy=peer)
