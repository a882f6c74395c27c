"""Looks inside the stateful parts of a router: `check` fails where one contradicts itself."""

import math
from collections import Counter
from dataclasses import fields
from functools import singledispatch
from itertools import chain

import numpy as np

from tests.indexer import consistent
from warmpath.router.admission.in_flight import MOST_KNOWN, STRANGER, InFlight
from warmpath.router.admission.waiting_calls import CallState, WaitingCalls
from warmpath.router.diagnosis.attribution import FULL, Attribution, Evidence
from warmpath.router.diagnosis.clients import TokenCounts
from warmpath.router.diagnosis.decisions import Decisions
from warmpath.router.load.bookings import Bookings
from warmpath.router.load.other_routers import sum_of
from warmpath.router.load.rank_bookings import RankBook
from warmpath.router.load.stuck import StuckRanks
from warmpath.router.load.table import SEEN, LoadTable, _row
from warmpath.router.peers.exchange import BATCH, PeerBookings
from warmpath.router.peers.marks import Marks
from warmpath.router.peers.received import MOST_PEERS
from warmpath.router.pick.calibration import FASTEST, LEAST, SLOWEST, Calibration
from warmpath.router.pick.eligible import Wanted
from warmpath.router.pick.options import MOST_CANDIDATES
from warmpath.router.pick.picker import Picker
from warmpath.router.pick.picking import Picking
from warmpath.router.pick.underway import Underway
from warmpath.router.queue.crowd import Crowd
from warmpath.router.queue.held_picks import HeldPicks
from warmpath.router.queue.order import MOST_IDLE, Order
from warmpath.router.queue.queue import SPARE, Queue


@singledispatch
def check(part: object) -> None:
    raise TypeError(f"no check of {type(part).__name__}")


@check.register
def _(attribution: Attribution) -> None:
    assert len(attribution._rows) <= attribution._most
    for name, row in attribution._rows.items():
        assert name == (row.pod, row.model), f"{name} has the row of {row.pod}, {row.model}"
        assert row.captured_tokens <= row.available_tokens <= row.prompt_tokens
        assert max(row.predicted_tokens, row.delivered_tokens) <= row.reported_prompt_tokens
        check(row.evidence)
    for one in fields(TokenCounts):
        of_clients = sum(getattr(client, one.name) for client in attribution.clients)
        assert of_clients == getattr(attribution.total, one.name), one.name
    for shadow in attribution.shadow.rows():
        assert max(shadow.chosen_tokens, shadow.warmpath_tokens) <= shadow.prompt_tokens
        gained = shadow.better_tokens - shadow.worse_tokens
        assert gained == shadow.warmpath_tokens - shadow.chosen_tokens
        assert max(shadow.better + shadow.worse, shadow.agreed, shadow.exact) <= shadow.requests
        assert shadow.saved_p50 <= shadow.saved_p90


@check.register
def _(decisions: Decisions) -> None:
    assert len(decisions._kept) <= decisions._most
    for kept in decisions._kept.values():
        assert 0 < len(kept.reason.contenders) <= MOST_CANDIDATES + 1


@check.register
def _(evidence: Evidence) -> None:
    for traits, tally in evidence.tallies.items():
        parts = (
            tally.weight <= min(tally.reports, FULL) + 1e-6,
            tally.void <= tally.over + 1e-6,
            tally.blind <= tally.under + 1e-6,
            tally.miscounted <= tally.counted + 1e-6,
            tally.counted <= tally.weight + 1e-6,
            tally.believed <= tally.predicted + 1e-6,
            tally.predicted <= tally.tokens + 1e-6,
        )
        assert all(parts), f"the tally of {traits} is impossible: {tally}"
    assert evidence.expired <= evidence.ended + 1e-6
    assert evidence.ended <= min(evidence.ends, FULL) + 1e-6
    assert all(evidence.hits), "hits has a count of 0 tokens"


@check.register
def _(bookings: Bookings) -> None:
    placed = 0
    for name, book in bookings.ranks.items():
        check(book)
        placed += len(book.in_flight)
        for booking in book.in_flight.values():
            assert (booking.work.pod, booking.work.rank) == name
            assert bookings._bookings.get(booking.id) is booking
    assert placed == len(bookings._bookings)
    awaited = [
        one
        for one in bookings._bookings.values()
        if one.first_token_at is None and not one.is_missed
    ]
    due = [(one.late_at, one.number) for one in awaited]
    assert sorted(due) == [rank for rank, _ in bookings.overdue._due]
    check(bookings.stuck)
    assert len(bookings._bookings) <= bookings._most
    assert len(bookings.ranks) <= bookings._most + 1


@check.register
def _(book: RankBook) -> None:
    works = [booking.work for booking in book.waiting.values()]
    sums = (
        sum(work.own_nanoseconds for work in works),
        sum(work.uncached for work in works),
        sum(work.prompt_tokens for work in works),
        sum(booking.work.prompt_tokens for booking in book.in_flight.values()),
    )
    kept = book._own_nanoseconds, book.uncached_tokens, book.prompt_tokens, book.context_tokens
    assert sums == kept
    for bookings in (book.in_flight, book.waiting, book.unanswered):
        times = [booking.since for booking in bookings.values()]
        assert times == sorted(times), "bookings are not in the order in which they went out"
    ended = sum(book.may_have_ended(booking) for booking in book.in_flight.values())
    assert book.certain + ended == len(book.in_flight)
    assert all(book.in_flight.get(name) is one for name, one in book.waiting.items())
    assert all(book.in_flight.get(name) is one for name, one in book.unanswered.items())
    assert all(booking.first_token_at is None for booking in book.waiting.values())


@check.register
def _(stuck: StuckRanks) -> None:
    assert stuck._stuck.items() <= stuck._owing.items(), "a stuck rank owes nothing"
    due = {
        name
        for name, owing in stuck._owing.items()
        if name not in stuck._stuck and owing.waited is None
    }
    assert due == {name for _, name in stuck._due}
    assert stuck._owing.keys() <= stuck._books.keys(), "a rank that is gone owes an answer"


@check.register
def _(table: LoadTable) -> None:
    # Outside of the loop: the same happens to a table that has no rows.
    now = table._bookings.expire(0.0)
    for name, row in table._row_of.items():
        is_stale = now - table._figures[SEEN, row] > table._stale
        news = table._others is not None and table._others_version != table._others.version(now)
        if name in table._changed or is_stale or news:
            continue
        figures = np.array(_row(table._unaged(name, now)))
        assert np.array_equal(table._figures[:, row], figures, equal_nan=True)


@check.register
def _(calibration: Calibration) -> None:
    for of, model in calibration._models.items():
        for average in model.averages.values():
            assert math.log(FASTEST) <= average.log_factor <= math.log(SLOWEST)
            assert bool(average.prefills) == (average.predicted > 0)
        known = sorted(
            ((average.log_factor, name), name)
            for name, average in model.averages.items()
            if average.ratios >= LEAST
        )
        assert [*model.known] == known, f"the known factors of {of} are not those of its ranks"


@check.register
def _(peers: PeerBookings) -> None:
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


@check.register
def _(picker: Picker) -> None:
    kept = picker._placed.values()
    ours = {one.id for placed in kept for one in (placed.booking, placed.decoding) if one}
    for rank, book in picker._assigner.bookings.ranks.items():
        assert ours.issuperset(book.in_flight), f"a booking on {rank} outlives its pick"
    assert picker._expectations == sum(len(placed.predicted) for placed in kept)
    assert len(kept) <= picker._booking.max_bookings


@check.register
def _(picking: Picking) -> None:
    check(picking.picker)
    consistent.check(picking.believed)
    check(picking.bookings)
    check(picking.loads)
    check(picking.calibration)


@check.register
def _(underway: Underway) -> None:
    for name, turn in underway._turns.items():
        assert not turn.task.done(), f"pick {name} has ended and is kept"
        assert not turn.ended_by


@check.register
def _(crowd: Crowd) -> None:
    for of in crowd._all.groups.values():
        tenants = [one for caller in of.groups.values() for one in caller.groups.values()]
        groups = [of, *of.groups.values(), *tenants]
        assert all(one.count for one in groups)
        assert all(one.requests for one in tenants)
        assert of.count == sum(len(one.requests) for one in tenants)
        assert all([*one.requests] == sorted(one.requests) for one in tenants)
        shares = crowd._settings.shares
        for group, weights in ((of, {}), *((caller, shares) for caller in of.groups.values())):
            parts = {name: one.part / weights.get(name, 1.0) for name, one in group.groups.items()}
            assert [*group.order] == sorted(((part, name), name) for name, part in parts.items())
    assert crowd.bytes == sum(one.size for one in crowd)


@check.register
def _(held: HeldPicks) -> None:
    check(held.queue)
    awaited = sum(not future.done() for future in held._futures.values())
    assert awaited <= len(held.queue), "a call waits that is not in the queue"
    assert not len(held.queue) or held._soon is not None or held._later is not None


@check.register
def _(order: Order) -> None:
    found: dict[Wanted, Counter[int]] = {}
    for (kind, tenant), share in order._shares.items():
        assert share.lines, "a share without waiting requests is kept, or under another name"
        assert (share.kind, share.tenant) == (kind, tenant)
        for wanted, line in share.lines.items():
            numbers = [rank for rank, _ in line]
            assert numbers
            assert numbers == sorted(numbers)
            assert all(rank == (one.key, one.number) for rank, one in line)
            assert share.heads.rank_of(wanted) == numbers[0]
            found.setdefault(wanted, Counter())[kind[0]] += len(numbers)
        assert len(share.heads) == len(share.lines)
        place = order._contests[kind].places.rank_of(share)
        assert place == (share.virtual, *share.heads.first[0])
    assert order.lanes == found, "the lanes are not those of the shares"
    for kind, contest in order._contests.items():
        assert len(contest.places) == sum(share.kind == kind for share in order._shares.values())
        assert contest.places
        assert len(contest.idle) <= MOST_IDLE


@check.register
def _(queue: Queue) -> None:
    check(queue._order)
    waiting = [entry[2] for entry in queue._times if entry[2].is_waiting]
    assert len(waiting) == len(queue), "the times are not those of the waiting requests"
    assert len(queue._times) <= 2 * len(queue) + SPARE + 1
    check(queue.crowd)
    assert {*queue.crowd} == {*waiting}, "the crowd, the order and the times differ"
    assert sum(one.total() for one in queue._order.lanes.values()) == len(queue)
    assert len(queue) <= queue._settings.max_requests


@check.register
def _(in_flight: InFlight) -> None:
    _check_waiting(in_flight._waiting)
    assert in_flight.waiting <= in_flight._most_waiting
    assert in_flight.bytes == sum(in_flight._taken.values())
    strangers = (in_flight._taken[one] for one in in_flight._taken if one.startswith(STRANGER))
    assert in_flight._strangers == sum(strangers)
    for client in in_flight._waiting.clients:
        assert all(
            client == in_flight._client(one) for one in in_flight._waiting._clients[client].calls
        )
    assert all(taken > 0 for taken in in_flight._taken.values())
    assert all(place.state is CallState.READING for place in in_flight._reading)
    assert len(in_flight._known) <= MOST_KNOWN
    assert in_flight._next() is None, "a call waits though it has room"


def _check_waiting(waiting: WaitingCalls) -> None:
    assert waiting._clients.keys() == waiting._counts.keys()
    for name, client in waiting._clients.items():
        calls = {one for own in client.calls.values() for one in own}
        assert len(calls) == waiting._counts[name] > 0
        assert all(client.calls.values())
        assert all(one.client == name for one in calls)
        assert sum(len(line.calls) for line in client.lines.values()) == len(calls)
        assert len(client.longest) == len(client.calls)
        kind, rank = waiting._kind_of(name), waiting._rank_of(name)
        for size, line in client.lines.items():
            assert line.calls
            assert waiting._lines[kind, size].rank_of(line) == (*rank, line.turn)
    lines = sum(len(client.lines) for client in waiting._clients.values())
    assert lines == sum(map(len, waiting._lines.values()))
    assert all(waiting._lines.values())
    assert len(waiting._most) == len(waiting._counts)
    assert waiting.number == sum(waiting._counts.values())
