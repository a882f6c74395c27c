"""Score's messages in bytes, without an object for each token id or pod.

A request is read by a schema that leaves the list of ids packed (`proto/warmpath/wire`); a reply is
written by hand, since most of it is the same each time. What is written is what protobuf would write:
`tests/router/test_wire.py` compares them.
"""

import struct
from collections.abc import Iterable

import numpy as np
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from router.body import BadPromptError
from router.pb.warmpath.v1 import router_pb2 as pb
from router.pb.warmpath.wire.v1 import score_request_pb2 as wire

try:
    from indexer.compiled.varint import unpack
except ImportError:  # no Numba: protobuf makes the objects
    unpack = None  # type: ignore[assignment]

SCORE_TAG = b"\x19"
"""PodScore.score: field 3, 64 bits."""
MATCHED_TAG = b"\x20"
"""PodScore.matched_tokens: field 4, varint."""
TIERS_TAG = b"\x2a"
"""PodScore.tiers: field 5, bytes."""
SCORES_TAG = b"\x0a"
"""ScoreResponse.scores: field 1, bytes."""


def parse_request(raw: bytes) -> wire.ScoreRequest:
    """Parse a request. Raises BadPromptError where it is none."""
    try:
        return wire.ScoreRequest.FromString(raw)
    except DecodeError as error:
        raise BadPromptError("request", "is no ScoreRequest") from error


def listed_ids(message: wire.TokenIds) -> bytes:
    """Return listed token ids, packed as 4 bytes each. Raises ValueError where one has more bits."""
    if unpack is None or len(UnknownFieldSet(message)):
        # A sender may write each id as a field of its own.
        ids = pb.TokenIds.FromString(message.SerializeToString()).ids
        return np.array(ids, "<u4").tobytes()
    packed = np.frombuffer(b"".join(message.ids), np.uint8)
    found = np.empty(len(packed), np.uint32)
    count = unpack(packed, found)
    if count < 0:
        raise ValueError("a token id is an unsigned 32-bit integer")
    return found[:count].tobytes()


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


def pod_score(fixed: bytes, score: float, tiers: Iterable[tuple[bytes, int]]) -> bytes:
    """Return a ScoreResponse's entry: `fixed` is the rest of the PodScore, `tiers` its tokens by tier.

    A tier is its name as TierTokens begins with it (`tier_field`).
    """
    parts = [fixed]
    if score:
        parts.append(_DOUBLE.pack(SCORE_TAG, score))
    matched = 0
    held: list[bytes] = []
    for name, tokens in tiers:
        matched += tokens
        one = name + varint(tokens)
        held += (TIERS_TAG, bytes((len(one),)), one)
    if matched:
        parts += (MATCHED_TAG, varint(matched), *held)
    body = b"".join(parts)
    return SCORES_TAG + varint(len(body)) + body


def tier_field(tier: str) -> bytes:
    """Return the beginning of a TierTokens: its name, and the tag of the tokens."""
    return pb.TierTokens(tier=tier).SerializeToString() + b"\x10"
