"""Encodes Score's replies without an object for each pod.

The bytes are written by hand, since most of a reply is the same each time. Protobuf would write the same
bytes: `tests/router/calls/test_wire.py` compares them.
"""

import struct
from functools import cache, lru_cache

from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.scorer.match import Match

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


_DOUBLE = struct.Struct("<cd")


@lru_cache(4096)
def match_part(score: float, match: Match) -> bytes:
    """Return the part of a PodScore that depends on the prompt."""
    parts = []
    if score:
        parts.append(_DOUBLE.pack(SCORE_TAG, score))
    if match.matched_tokens:
        parts += (MATCHED_TAG, varint(match.matched_tokens))
    for tier, tokens in match.tokens_by_tier.items():
        one = _tier_field(tier) + varint(tokens)
        parts += (TIERS_TAG, varint(len(one)), one)
    if match.believed_tokens:
        parts += (BELIEVED_TAG, varint(match.believed_tokens))
    return b"".join(parts)


def entry_of(fixed: bytes, more: int) -> bytes:
    """Return the beginning of a ScoreResponse's entry: a PodScore of which `more` bytes follow."""
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
