"""Encodes the answers of Score and Pick without an object for each pod or candidate.

The bytes are written by hand, since most of a reply is the same each time. Protobuf would write the same
bytes: `tests/router/calls/test_wire.py` compares them.
"""

import struct
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from itertools import chain, repeat

from warmpath.indexer.rank import Rank
from warmpath.indexer.trust import Trust
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.router.match.match import Matches
from warmpath.router.pick.eligible import Seat
from warmpath.router.pick.messages import source_message, trust_message
from warmpath.router.pick.options import MOST_CANDIDATES, Candidates
from warmpath.router.pick.pick import Pick
from warmpath.router.pods.table import Pod
from warmpath.scorer.columns import FIGURES
from warmpath.scorer.match import Match
from warmpath.scorer.strategies import Strategy

SCORE_TAG = b"\x19"
"""PodScore.score: field 3, 64 bits."""
MATCHED_TAG = b"\x20"
"""PodScore.matched_tokens: field 4, varint."""
TIERS_TAG = b"\x2a"
"""PodScore.tiers: field 5, bytes."""
BELIEVED_TAG = b"\x40"
"""PodScore.believed_tokens: field 8, varint."""
SCORES_TAG = b"\x0a"
"""ScoreResponse.scores: field 1, bytes."""


@lru_cache(1 << 13)
def varint(number: int) -> bytes:
    """Return an unsigned number as protobuf writes it."""
    if number < 0x80:
        return bytes((number,))
    if number < 0x4000:
        return bytes((number & 0x7F | 0x80, number >> 7))
    parts = bytearray()
    while number >= 0x80:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    parts.append(number)
    return bytes(parts)


_TAGGED_DOUBLE = struct.Struct("<cd").pack


@lru_cache(4096)
def match_part(score: float, match: Match) -> bytes:
    """Return the part of a PodScore that depends on the prompt."""
    parts = []
    if score:
        parts.append(_TAGGED_DOUBLE(SCORE_TAG, score))
    if match.matched_tokens:
        parts += (MATCHED_TAG, varint(match.matched_tokens))
    for tier, tokens in match.tokens_by_tier.items():
        one = _tier_field(tier) + varint(tokens)
        parts += (TIERS_TAG, varint(len(one)), one)
    if match.believed_tokens:
        parts += (BELIEVED_TAG, varint(match.believed_tokens))
    return b"".join(parts)


def entry_of(fixed: bytes, more: int) -> bytes:
    """Return how a ScoreResponse's entry begins: tag, length, `fixed`; the caller adds `more` bytes."""
    return SCORES_TAG + varint(len(fixed) + more) + fixed


def score_rest(prompt_tokens: int, covered_chars: int, request_id: int) -> bytes:
    """Return the fields of a ScoreResponse that follow its scores."""
    rest = b"\x10" + varint(prompt_tokens) if prompt_tokens else b""
    if covered_chars:
        rest += b"\x18" + varint(covered_chars)
    if request_id:
        rest += b"\x20" + varint(request_id)
    return rest


@cache
def _tier_field(tier: str) -> bytes:
    """Return the beginning of a TierTokens: its name, and the tag of the tokens."""
    return pb.TierTokens(tier=tier).SerializeToString() + b"\x10"


def stream_reply(request_id: int, response: bytes) -> bytes:
    """Return a ScoreStreamResponse with a response."""
    named = b"\x08" + varint(request_id) if request_id else b""
    return named + b"\x12" + varint(len(response)) + response


MOST_RANKS = 8192
"""Most ranks, those that were asked for last, whose entries' beginnings are kept."""

UNKNOWN_POD = pb.PodScore(
    trust=pb.Trust(level=pb.Trust.COLD, reason="no such pod serves the model")
).SerializeToString()
"""The fields of an unknown pod's PodScore that follow its name."""


def unknown_pod(name: str) -> tuple[bytes, bytes]:
    """Return the two parts, one after the other, of a ScoreResponse's entry for an unknown pod."""
    named = pb.PodScore(pod=name).SerializeToString()
    return entry_of(named, len(UNKNOWN_POD)), UNKNOWN_POD


class Beginnings(dict[int, bytes]):
    """The bytes with which a rank's entry of a ScoreResponse begins.

    The key is the size in bytes of the rest of the entry.
    """

    def __init__(self, fixed: bytes) -> None:
        self._fixed = fixed

    def __missing__(self, size: int) -> bytes:
        self[size] = beginning = entry_of(self._fixed, size)
        return beginning


@lru_cache(MOST_RANKS)
def _beginnings(pod: str, rank: int, trust: Trust, ready: bool, wall_offset: float) -> Beginnings:
    score = pb.PodScore(pod=pod, rank=rank, trust=trust_message(trust, wall_offset), ready=ready)
    return Beginnings(score.SerializeToString())


class Replies:
    """Writes ranks' scores; a time of the ingest + `wall_offset()` is seconds since the Unix epoch."""

    def __init__(self, wall_offset: Callable[[], float]) -> None:
        self._wall_offset = wall_offset
        self._of: tuple[list[Trust], list[Rank], list[bool], float] | None = None
        """The values that made the last answer's entries: mostly the next one has the same."""
        self._last: list[Beginnings] = []

    def parts(
        self,
        pods: Sequence[Pod],
        ranks: list[Rank],
        matches: Matches,
        trusts: list[Trust],
        strategy: Strategy,
    ) -> tuple[list[bytes], int]:
        """Return a ScoreResponse's parts with the scores of pods' ranks, and the most matched tokens."""
        most = 0
        part_of: dict[Match | None, bytes] = {None: b""}
        for match in {*matches.values()}:
            part_of[match] = match_part(strategy(match), match)
            most = max(most, match.matched_tokens)
        parts: list[bytes] = []
        beginnings = self._beginnings(pods, ranks, trusts)
        for beginning, matched in zip(beginnings, map(matches.get, ranks), strict=True):
            part = part_of[matched]
            parts += beginning[len(part)], part
        return parts, most

    def _beginnings(
        self, pods: Sequence[Pod], ranks: list[Rank], trusts: list[Trust]
    ) -> list[Beginnings]:
        ready = [
            # Nearly all pods have a connected first rank, which is tested faster than the property.
            (
                bool(pod.ranks)
                and pod.ranks[0].is_connected
                and pod.status.healthy is not False
                and not pod.withheld
            )
            or pod.ready
            for pod in pods
        ]
        # The objects are mostly the same, which lists find out quickly.
        of = trusts, ranks, ready, self._wall_offset()
        if self._of != of:
            readiness = chain.from_iterable(
                repeat(one, len(pod.ranks)) for pod, one in zip(pods, ready, strict=True)
            )
            self._last = [
                _beginnings(rank.pod, rank.number, trust, is_ready, of[3])
                for rank, trust, is_ready in zip(ranks, trusts, readiness, strict=True)
            ]
            self._of = of
        return self._last


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
