"""Processor time of picks by the number of ranks, and of routers that share their bookings."""

import statistics
import time
from collections.abc import Iterator
from functools import partial

from warmpath.indexer.embedded import embedded_index
from warmpath.indexer.index.slot import RankName
from warmpath.indexer.shared.layout.names import KeyNames
from warmpath.lab.bench.figure import Figure
from warmpath.lab.bench.stand.asked import BOOKED, Asked, new_picking
from warmpath.lab.bench.stand.look_up import TOKENS, no_collector
from warmpath.lab.bench.stand.made_up_fleet import MODEL, new_ingest
from warmpath.lab.simulate.booking_store import BookingStore
from warmpath.router.load.rank_bookings import Work
from warmpath.router.peers import booking_id
from warmpath.router.peers.exchange import PeerBookings
from warmpath.router.pick.picking import Picking

RANKS = 8
"""Ranks of a pod."""
SIZES = (8, 64, 512, 8000)
"""Numbers of ranks of the fleets."""
PROMPTS = 20


def measure(*, quick: bool) -> Iterator[Figure]:
    """Measure picks among several numbers of ranks, then rounds in which bookings are shared."""
    sizes = SIZES[:2] if quick else SIZES
    for ranks in sizes:
        name = f"router: 1,000 picks in process, {TOKENS:,} ids, {ranks:,} ranks"
        yield Figure(name, _pick(ranks, 20 if quick else 100) * 1e3, "s")
    for ranks in sizes:
        write, read, renew = _share(ranks, 3 if quick else 12)
        on = f"bookings on {ranks:,} ranks"
        yield Figure(f"router: its {on} written 1,000 times", write * 1e3, "s")
        yield Figure(f"router: another router's {on} read 1,000 times", read * 1e3, "s")
        yield Figure(f"router: loads of {ranks:,} ranks made current 1,000 times", renew * 1e3, "s")


def _pick(ranks: int, calls: int) -> float:
    """Return the processor seconds of a pick with its answer: the median."""
    asked = Asked(ranks // RANKS, PROMPTS, each=RANKS)
    asked.load()
    return asked.answer_seconds(calls)


def _share(ranks: int, rounds: int) -> tuple[float, float, float]:
    """Return the seconds to write bookings, to read another router's, and to renew loads: medians."""
    names = [RankName(f"pod-{place // RANKS}", place % RANKS) for place in range(ranks)]
    (writer, wrote), (reader, read) = _router(), _router()
    for number, (pod, rank) in enumerate(names):
        for nth in range(BOOKED + 1):
            for each in (writer, reader):
                work = Work(MODEL, pod, rank, TOKENS, 100 * (number % 37), 0.1)
                booking = each.bookings.book(work, 0.0)
                if nth:
                    each.bookings.first_token(booking.id, 0.0)
    reader.loads.current(names, 0.0)
    store = BookingStore()
    writes, reads, renewals = [], [], []
    with no_collector():
        for turn in range(rounds + 2):
            now = 0.1 * turn
            writer.bookings.book(Work(MODEL, *names[0], TOKENS, 0, 0.1), now)
            begun = time.process_time()
            wrote.answer(store.run(wrote.ask(now)), now)
            writes.append(time.process_time() - begun)
            replies = store.run(read.ask(now))
            begun = time.process_time()
            read.answer(replies, now)
            reads.append(time.process_time() - begun)
            begun = time.process_time()
            for name in reader.loads.take_changes(now):
                reader.loads.renew(*name, now)
            renewals.append(time.process_time() - begun)
    assert len(read.received.alive(now)) == 1
    # A router is listed in the first round and read in the second.
    write, receive, renew = (statistics.median(taken[2:]) for taken in (writes, reads, renewals))
    return write, receive, renew


def _router() -> tuple[Picking, PeerBookings]:
    """Return the parts of a router that shares its bookings."""
    name = booking_id.new_router()
    picking = new_picking(
        new_ingest(embedded_index(1 << 20), 1)[0],
        new_id=lambda: booking_id.new_id(name),
        share=partial(PeerBookings, name, KeyNames("bench")),
    )
    assert picking.peers is not None
    return picking, picking.peers
