"""Looks inside shared bookings: fails where they contradict themselves."""

from itertools import chain

from warmpath.router.load.other_routers import sum_of
from warmpath.router.peers.exchange import BATCH, PeerBookings
from warmpath.router.peers.marks import Marks
from warmpath.router.peers.received import MOST_PEERS


def check_peers(peers: PeerBookings) -> None:
    received, relay, marks = peers.received, peers.relay, Marks()
    for name, kept in received._summed.items():
        assert received._is_changed or kept == sum_of(
            (peer.ranks[name], peer.received_at)
            for peer in received._peers.values()
            if name in peer.ranks
        ), f"the sums of {name} are out of date"
        assert min(kept.nanoseconds, kept.waiting, kept.in_flight, *kept.settled) >= 0
    marks.replace(chain.from_iterable(one.sums.arriving for one in received._peers.values()))
    assert received._is_changed or marks.ranks == received.marks.ranks
    assert not received._silent.keys() & received._peers.keys(), "a silent router has a value"
    assert received._router not in received._peers
    assert len(received._peers) <= MOST_PEERS
    assert relay.waiting == sum(map(len, relay._outgoing.values()))
    assert all(relay._outgoing.values()), "a router without waiting reports has a queue"
    assert len(relay._taken) <= 2 * BATCH
