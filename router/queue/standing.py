"""Describes the places of waiting picks: in sentences, and in messages of Explain and ListDecisions."""

from collections.abc import Iterator
from itertools import chain, islice

from warmpath.process.command_line import seconds
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.router.load.overdue import Precedence
from warmpath.router.pick.messages import candidate_message
from warmpath.router.pick.pick import Pick
from warmpath.router.queue.queue import Queue
from warmpath.router.queue.request import Standing


def waits(standing: Standing | None) -> str:
    """Return " It would wait …" for a pick that would wait in the queue; empty if it would not."""
    return f" It would wait {_place(standing)}." if standing else ""


def standing_message(standing: Standing | None) -> pb.Standing | None:
    """Return the message of a standing; None if a pick would not wait."""
    if not standing:
        return None
    best = standing.choice.options[0].candidate
    return pb.Standing(
        behind=standing.behind, pod=best.pod, rank=best.rank, seconds=standing.seconds
    )


def engine_priority(placed: Pick, precedence: Precedence, wall_offset: float) -> int:
    """Return a pick's place as a number, for engines that order by it: the least goes first.

    It is the place of its cheapest prefill, in milliseconds since the Unix epoch.
    """
    arrived = placed.at - placed.waited + wall_offset
    return round(1000 * precedence.place(arrived, placed.choice.options.cheapest()[0]))


def with_waiting(
    decisions: Iterator[pb.Decision],
    queue: Queue,
    request: pb.ListDecisionsRequest,
    now: float,
    wall_offset: float,
) -> Iterator[pb.Decision]:
    """Return the waiting picks that a request asks for, before the decisions; as many as it wants."""
    waiting = (
        one
        for one in _waiting(queue, now, wall_offset)
        if request.model in ("", one.model)
        and request.pod in ("", one.standing.pod)
        and request.session_id in ("", one.session_id, one.parent_session_id)
    )
    return islice(chain(waiting, decisions), request.limit or None)


def _waiting(queue: Queue, now: float, wall_offset: float) -> Iterator[pb.Decision]:
    """Yield the waiting picks that go first, as decisions that are not made yet."""
    for waiting, standing in queue.standings(now):
        choice = standing.choice
        best = choice.options[0]
        yield pb.Decision(
            booking_id=waiting.ask.booking_id,
            at=waiting.arrived + wall_offset,
            model=waiting.ask.wanted.model,
            policy=choice.policy,
            prompt_tokens=choice.ask.tokens,
            candidates=[candidate_message(best, wall_offset, ())],
            reason=f"It waits {_place(standing)}.",
            state=pb.Decision.WAITING,
            waited_seconds=max(0.0, now - waiting.arrived),
            standing=standing_message(standing),
            request_id=waiting.ask.request_id,
            trace_id=waiting.ask.trace_id,
            session_id=waiting.ask.session,
            parent_session_id=waiting.ask.parent_session,
            session_final=waiting.ask.ends_session,
        )


def _place(standing: Standing) -> str:
    best = standing.choice.options[0]
    name = best.candidate.pod
    if standing.choice.options.field.has_ranks:
        name += f" rank {best.candidate.rank}"
    behind = f"behind {standing.behind}" if standing.behind else "as the first"
    if not standing.seconds:
        return f"{behind}; {name} has room"
    return f"{behind}; {name} has room in {seconds(standing.seconds)}"
