"""Every fault of the shared index: the tests cause each once, `make soak` for longer."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import NamedTuple

from tests.faults import network, publishers, servers
from tests.faults.rig import Outcome
from tests.servers.redis_server import Binary
from warmpath.indexer.shared.writer.lease import Cause
from warmpath.indexer.trust import PROMISED_SECONDS

FAR = PROMISED_SECONDS + 1
"""Seconds each way: a write is answered, and too late to confirm anything."""
BINARIES: tuple[Binary, ...] = ("redis", "valkey")


class Fault(NamedTuple):
    """A fault, for a prefix and a number of seconds, and what has to be so where these are none."""

    run: Callable[[str, float], Awaitable[Outcome]]
    so: Callable[[Outcome], object] = lambda _: True
    is_tested: bool = True
    """Otherwise it is soaked alone."""


def rebuilt(outcome: Outcome) -> bool:
    return bool(outcome.rebuilds)


def untouched(outcome: Outcome) -> bool:
    return not outcome.rebuilds


def both_rebuilt(outcome: Outcome) -> bool:
    return outcome.rebuilds.total() >= 2


def says_that_it_is_late(outcome: Outcome) -> bool:
    return any("did not answer" in reason for reason in outcome.reasons["shared"])


def says_that_it_is_full(outcome: Outcome) -> bool:
    told = outcome.reasons.values()
    return untouched(outcome) and all(any("OOM" in one for one in reasons) for reasons in told)


FAULTS = {
    "no fault": Fault(partial(publishers.starved, share=1.0), is_tested=False),
    "publishers have a tenth of a core": Fault(partial(publishers.starved, share=0.1)),
    "publishers stopped for 5 s of each 5.3 s": Fault(publishers.stopped_in_turn),
    "server killed, back with nothing": Fault(servers.killed, rebuilt),
    "server killed, back with nothing (Valkey 9)": Fault(partial(servers.killed, binary="valkey"), rebuilt),
    "server killed, appendfsync always": Fault(partial(servers.killed, appendfsync="always")),
    "server killed, the file's end lost": Fault(partial(servers.killed, appendfsync="everysec", tail=servers.TAIL), rebuilt),
    "server stands still": Fault(servers.stands_still),
    "FLUSHALL": Fault(partial(servers.by_hand, words=lambda _: ("FLUSHALL",)), both_rebuilt),
    "DEBUG RELOAD: old data, connections open": Fault(servers.reloaded),
    "a record deleted by hand": Fault(partial(servers.by_hand, words=lambda made: ("DEL", made.names.record("a"))), lambda outcome: outcome.rebuilds[Cause.RECORD]),
    "half of the buckets deleted by hand": Fault(partial(servers.by_hand, words=servers.half_of_the_buckets), lambda outcome: outcome.rebuilds[Cause.LOST] >= 2),
    "memory limit, noeviction": Fault(servers.full, says_that_it_is_full),
    "memory limit, noeviction (Valkey 9)": Fault(partial(servers.full, binary="valkey"), is_tested=False),
    "memory limit, allkeys-lru": Fault(servers.evicting, rebuilt),
    "connections cut in mid-batch": Fault(network.cut),
    "0.4 s there and back": Fault(network.slow, says_that_it_is_late),
    "40 kB/s": Fault(network.narrow),
    "publishers 0.2 s away": Fault(partial(network.far, latency=0.2)),
    "publishers 0.6 s away": Fault(partial(network.far, latency=0.6)),
    "publishers further away than an exact answer may be old": Fault(partial(network.far, latency=FAR, lease=60.0, lasts=6 * FAR)),
    "publishers at 6 kB/s": Fault(partial(network.far, rate=network.THIN)),
    "nothing of publishers arrives": Fault(network.silent),
    "routers cut off": Fault(network.readers_cut_off, untouched),
    "publishers cut off": Fault(network.writers_cut_off, both_rebuilt),
    "two publishers claim one pod": Fault(publishers.contended),
    "a zombie's late writes": Fault(publishers.zombie),
    "publisher killed and restarted": Fault(publishers.restarted),
    "publisher gone, back after its lease": Fault(publishers.gone_for_good),
    "publisher killed, the server's clock set back": Fault(publishers.dead_when_time_goes_back),
    "clocks hours off, at wrong speeds": Fault(publishers.clocks_lie),
    "the server's TIME is wrong by two days": Fault(servers.forgotten, untouched),
    "cluster: master killed, replica behind": Fault(servers.master_killed, rebuilt),
    "cluster: fail-over in order": Fault(servers.failed_over),
    "cluster: buckets moved under load": Fault(servers.slots_moved),
    "Sentinel: master killed": Fault(servers.sentinel_failed_over),
    **{
        f"commands refused: {name} ({binary})": Fault(
            partial(servers.refused, refusal=refusal, binary=binary), is_tested=binary == "redis" or name == "ACL -@write"
        )
        for binary in BINARIES
        for name, refusal in servers.REFUSALS.items()
    },
}  # fmt: skip
"""By name, as the table of `make soak` has it."""
