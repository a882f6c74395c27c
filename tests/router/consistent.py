"""Looks inside the stateful parts of a router: `check` raises AssertionError where one contradicts itself."""

import math
from collections import Counter
from functools import singledispatch
from itertools import chain

import numpy as np

from tests.indexer import consistent
from warmpath.router.diagnosis.attribution import Attribution
from warmpath.router.diagnosis.decisions import KEPT_CANDIDATES, Decisions
from warmpath.router.diagnosis.evidence import FULL, Evidence
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
    if len(attribution._rows) > attribution._most:
        raise AssertionError(f"{len(attribution._rows)} rows; at most {attribution._most}")
    for name, row in attribution._rows.items():
        if name != (row.pod, row.model):
            raise AssertionError(f"{name} has the row of {row.pod}, {row.model}")
        if not row.captured_tokens <= row.available_tokens <= row.prompt_tokens:
            raise AssertionError(f"{name}: not captured <= available <= prompt tokens")
        if max(row.predicted_tokens, row.delivered_tokens) > row.reported_prompt_tokens:
            raise AssertionError(f"{name}: more tokens cached than prompts have")
        check(row.evidence)
    for shadow in attribution._shadows.values():
        if max(shadow.chosen_tokens, shadow.warmpath_tokens) > shadow.prompt_tokens:
            raise AssertionError(f"{shadow.model}: more tokens held than prompts have")


@check.register
def _(decisions: Decisions) -> None:
    if len(decisions._kept) > decisions._most:
        raise AssertionError(f"{len(decisions._kept)} decisions; at most {decisions._most}")
    for number, kept in decisions._kept.items():
        if not 0 < len(kept.candidates) <= KEPT_CANDIDATES:
            raise AssertionError(
                f"decision {number} has {len(kept.candidates)} candidates, not 1 to "
                f"{KEPT_CANDIDATES}"
            )


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
        if not all(parts):
            raise AssertionError(f"the tally of {traits} is impossible: {tally}")
    if evidence.expired > evidence.ended + 1e-6 or evidence.ended > min(evidence.ends, FULL) + 1e-6:
        raise AssertionError(
            f"not expired {evidence.expired} <= ended {evidence.ended} <= ends {evidence.ends}"
        )
    if not all(evidence.hits):
        raise AssertionError("hits has a count of 0 tokens")


@check.register
def _(bookings: Bookings) -> None:
    placed = 0
    for name, book in bookings.ranks.items():
        check(book)
        placed += len(book.in_flight)
        for booking in book.in_flight.values():
            if (booking.work.pod, booking.work.rank) != name:
                raise AssertionError("a booking lies on another rank than it says")
            if bookings._bookings.get(booking.id) is not booking:
                raise AssertionError("a rank has a booking that has ended")
    if placed != len(bookings._bookings):
        raise AssertionError(f"{len(bookings._bookings)} bookings are kept, {placed} on ranks")
    awaited = [
        one
        for one in bookings._bookings.values()
        if one.first_token_at is None and not one.is_missed
    ]
    due = [(one.late_at, one.number) for one in awaited]
    if sorted(due) != [rank for rank, _ in bookings.overdue._due]:
        raise AssertionError("not exactly the bookings without a first token are waited for")
    check(bookings.stuck)
    if len(bookings._bookings) > bookings._most or len(bookings.ranks) > bookings._most + 1:
        raise AssertionError("too many bookings or ranks are kept")


@check.register
def _(book: RankBook) -> None:
    works = [booking.work for booking in book.waiting.values()]
    sums = (
        sum(work.own_nanoseconds for work in works),
        sum(work.uncached for work in works),
        sum(work.prompt_tokens for work in works),
        sum(booking.work.prompt_tokens for booking in book.in_flight.values()),
    )
    kept = (
        book._own_nanoseconds,
        book.uncached_tokens,
        book.prompt_tokens,
        book.context_tokens,
    )
    if sums != kept:
        raise AssertionError(f"the sums are {kept}; those of the bookings are {sums}")
    for bookings in (book.in_flight, book.waiting, book.unanswered):
        times = [booking.since for booking in bookings.values()]
        if times != sorted(times):
            raise AssertionError("bookings are not in the order in which they went out")
    ended = sum(book.may_have_ended(booking) for booking in book.in_flight.values())
    if book.certain + ended != len(book.in_flight):
        raise AssertionError("the number of bookings that have not ended is wrong")
    if any(book.in_flight.get(name) is not one for name, one in book.waiting.items()):
        raise AssertionError("a waiting booking is not in flight")
    if any(book.in_flight.get(name) is not one for name, one in book.unanswered.items()):
        raise AssertionError("an unanswered booking is not in flight")
    if any(booking.first_token_at is not None for booking in book.waiting.values()):
        raise AssertionError("a waiting booking already has its first token")


@check.register
def _(stuck: StuckRanks) -> None:
    if not stuck._stuck.items() <= stuck._owing.items():
        raise AssertionError("a stuck rank owes nothing")
    due = {
        name
        for name, owing in stuck._owing.items()
        if name not in stuck._stuck and owing.waited is None
    }
    if due != {name for _, name in stuck._due}:
        raise AssertionError("not exactly the ranks that owe an answer are looked at again")
    if not stuck._owing.keys() <= stuck._books.keys():
        raise AssertionError("a rank that is gone owes an answer")


@check.register
def _(table: LoadTable) -> None:
    # Outside of the loop: the same happens to a table that has no rows.
    now = table._bookings.expire(0.0)
    for name, row in table._row_of.items():
        is_stale = now - table._figures[SEEN, row] > table._stale
        news = table._others is not None and table._others_version != table._others.version(now)
        if table._is_changed[row] or is_stale or news:
            continue
        figures = np.array(_row(table._unaged(name, now)))
        if not np.array_equal(table._figures[:, row], figures, equal_nan=True):
            raise AssertionError(f"the kept load of {name} is out of date")


@check.register
def _(calibration: Calibration) -> None:
    for of, model in calibration._models.items():
        for name, average in model.averages.items():
            if not math.log(FASTEST) <= average.log_factor <= math.log(SLOWEST):
                raise AssertionError(f"the factor of {name} is out of bounds")
            if bool(average.prefills) != (average.predicted > 0):
                raise AssertionError(f"the prefills of {name} are not summed")
        known = sorted(
            ((average.log_factor, name), name)
            for name, average in model.averages.items()
            if average.ratios >= LEAST
        )
        if [*model.known] != known:
            raise AssertionError(f"the known factors of {of} are not those of its ranks")


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
        if not ours.issuperset(book.in_flight):
            raise AssertionError(f"a booking on {rank} outlives its pick")
    if picker._expectations != sum(len(placed.predicted) for placed in kept):
        raise AssertionError("the predictions that are kept do not add up")
    if len(kept) > picker._booking.max_bookings:
        raise AssertionError(f"{len(kept)} picks; at most {picker._booking.max_bookings}")


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
        if turn.task.done() or turn.ended_by:
            raise AssertionError(f"pick {name} has ended and is kept")


@check.register
def _(crowd: Crowd) -> None:
    for of in crowd._all.groups.values():
        tenants = [one for caller in of.groups.values() for one in caller.groups.values()]
        groups = [of, *of.groups.values(), *tenants]
        if not all(one.count for one in groups) or not all(one.requests for one in tenants):
            raise AssertionError("a class, caller or tenant without requests is kept")
        if of.count != sum(len(one.requests) for one in tenants):
            raise AssertionError("the count of a class is wrong")
        if any([*one.requests] != sorted(one.requests) for one in tenants):
            raise AssertionError("a tenant's requests are not in the order of arrival")
        shares = crowd._settings.shares
        for group, weights in ((of, {}), *((caller, shares) for caller in of.groups.values())):
            parts = {name: one.part / weights.get(name, 1.0) for name, one in group.groups.items()}
            if [*group.order] != sorted(((part, name), name) for name, part in parts.items()):
                raise AssertionError("callers or tenants are not in the order of their parts")
    if crowd.bytes != sum(one.size for one in crowd):
        raise AssertionError("the bytes are not those of the waiting requests")


@check.register
def _(held: HeldPicks) -> None:
    check(held.queue)
    awaited = sum(not future.done() for future in held._futures.values())
    if awaited > len(held.queue):
        raise AssertionError("a call waits that is not in the queue")
    if len(held.queue) and held._soon is None and held._later is None:
        raise AssertionError("requests wait, and no release is scheduled")


@check.register
def _(order: Order) -> None:
    found: dict[Wanted, Counter[int]] = {}
    for (kind, tenant), share in order._shares.items():
        if not share.lines or (share.kind, share.tenant) != (kind, tenant):
            raise AssertionError("a share without waiting requests is kept, or under another name")
        for wanted, line in share.lines.items():
            numbers = [rank for rank, _ in line]
            if not numbers or numbers != sorted(numbers):
                raise AssertionError("a line is empty or not in order")
            if any(rank != (one.key, one.number) for rank, one in line):
                raise AssertionError("a request is not where its key says")
            if share.heads.rank_of(wanted) != numbers[0]:
                raise AssertionError("a line's place is not that of its first request")
            found.setdefault(wanted, Counter())[kind[0]] += len(numbers)
        if len(share.heads) != len(share.lines):
            raise AssertionError("the heads of a share are not those of its lines")
        place = order._contests[kind].places.rank_of(share)
        if place != (share.virtual, *share.heads.first[0]):
            raise AssertionError("a share's place is not that of its first request")
    if order.lanes != found:
        raise AssertionError("the lanes are not those of the shares")
    for kind, contest in order._contests.items():
        if len(contest.places) != sum(share.kind == kind for share in order._shares.values()):
            raise AssertionError("a contest's number of tenants is wrong")
        if not contest.places or len(contest.idle) > MOST_IDLE:
            raise AssertionError("a contest without tenants, or too many idle ones")


@check.register
def _(queue: Queue) -> None:
    check(queue._order)
    waiting = [entry[2] for entry in queue._times if entry[2].is_waiting]
    if len(waiting) != len(queue) or len(queue._times) > 2 * len(queue) + SPARE + 1:
        raise AssertionError("the times are not those of the waiting requests")
    check(queue.crowd)
    if {*queue.crowd} != {*waiting} or sum(
        one.total() for one in queue._order.lanes.values()
    ) != len(queue):
        raise AssertionError("the crowd, the order and the times differ")
    if len(queue) > queue._settings.max_requests:
        raise AssertionError("too many requests wait")
