"""The parts of picking with the service's default settings, for benchmarks."""

from itertools import count
from random import Random

from warmpath.indexer.embedded import embedded_index
from warmpath.router.config import schema as config
from warmpath.router.pick.pick import Witness
from warmpath.router.pick.picking import Picking


def new_picking(*witnesses: Witness) -> Picking:
    """Put the parts together; ties break the same way in each run."""
    names = map(str, count())
    return Picking(
        config.PickTable(),
        config.BookingTable(),
        config.QueueTable(),
        index=embedded_index(1 << 28),
        new_id=lambda: next(names),
        rng=Random(1),
        witnesses=witnesses,
    )
