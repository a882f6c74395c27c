"""Encodes Pick's answers without an object for each candidate.

Protobuf would write the same bytes: `tests/router/calls/test_wire.py` compares them.
"""

import struct
from functools import lru_cache

from warmpath.indexer.trust import Trust
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.router.calls.score_reply import MOST_RANKS, varint
from warmpath.router.pick.eligible import Seat
from warmpath.router.pick.messages import source_message, trust_message
from warmpath.router.pick.options import MOST_CANDIDATES, Candidates
from warmpath.router.pick.pick import Pick
from warmpath.scorer.columns import FIGURES

_DOUBLE = struct.Struct("<d").pack

CANDIDATE, DECODE = b"\x0a", b"\x22"
"""The tags of a PickResponse's candidates (field 1) and decode candidates (4)."""
TOLD = [FIGURES.index(name) for name in ("wait", "waiting_uncached_tokens", "prefill", "cost")]
"""The figures of a candidate that its message has."""


def pick_reply(pick: Pick, engine_priority: int, wall_offset: float) -> bytes:
    """Return the PickResponse of a pick that is not settled.

    A time of the ingest + `wall_offset` is seconds since the Unix epoch.
    """
    choice = pick.choice
    ask, decode = choice.ask, choice.decode
    parts = candidates(CANDIDATE, choice.options.kept, wall_offset)
    booking_id = pick.booking_id.encode()
    parts += (b"\x12", varint(len(booking_id)), booking_id)
    if pick.prompt_tokens:
        parts += (b"\x18", varint(pick.prompt_tokens))
    if decode:
        parts += candidates(DECODE, decode.kept, wall_offset)
    if ask.unread or choice.source is not None:
        source = choice.source and source_message(choice.source)
        rest = pb.PickResponse(
            source=source, reckoned_tokens=ask.unread, reckoned_because=ask.unread_because
        )
        parts.append(rest.SerializeToString())
    for tag, options in ((b"\x40", choice.options), (b"\x48", decode)):
        left_out = len(options) - MOST_CANDIDATES
        if left_out > 0:
            parts += (tag, varint(left_out))
    if pick.waited:
        parts += (b"\x51", _DOUBLE(pick.waited))
    if engine_priority:
        parts += (b"\x58", varint(engine_priority & (1 << 64) - 1))
    return b"".join(parts)


def candidates(tag: bytes, told: Candidates, wall_offset: float) -> list[bytes]:
    """Return the parts of a PickResponse with the first candidates."""
    parts: list[bytes] = []
    rows = told.figures.take(TOLD, 0).T.tolist()
    for (wait, uncached, prefill, cost), seat, match, trust in zip(
        rows[:MOST_CANDIDATES], told.seats, told.matches, told.trusts, strict=False
    ):
        one = _named(seat)
        if match.matched_tokens:
            one += b"\x20" + varint(match.matched_tokens)
        if uncached:
            one += b"\x28" + varint(int(uncached))
        if cost:
            one += b"\x31" + _DOUBLE(cost)
        one += _trusted(trust, wall_offset)
        if match.believed_tokens:
            one += b"\x40" + varint(match.believed_tokens)
        if wait + prefill:
            one += b"\x49" + _DOUBLE(wait + prefill)
        if seat.serves:
            one += b"\x58\x01"
        parts += (tag, varint(len(one)), one)
    return parts


@lru_cache(MOST_RANKS)
def _named(seat: Seat) -> bytes:
    pod, rank = seat.name
    return pb.Candidate(pod=pod, rank=rank, address=seat.address).SerializeToString()


@lru_cache(MOST_RANKS)
def _trusted(trust: Trust, wall_offset: float) -> bytes:
    return pb.Candidate(trust=trust_message(trust, wall_offset)).SerializeToString()
