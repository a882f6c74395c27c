"""Listed token ids of a message in Score's own bytes, without an object for each."""

import numpy as np
from google.protobuf.unknown_fields import UnknownFieldSet

from router.pb.warmpath.v1 import router_pb2 as pb
from router.pb.warmpath.wire.v1 import score_request_pb2 as wire
from router.prompt.bad_request import BadRequestError

try:
    from indexer.compiled.scan.varint import unpack
except ImportError:  # no Numba: protobuf makes the objects
    unpack = None  # type: ignore[assignment]


def listed_ids(message: wire.TokenIds, field: str) -> bytes:
    """Return listed token ids, packed as 4 bytes each. Raises BadRequestError for `field`."""
    if unpack is None or len(UnknownFieldSet(message)):
        # A sender may write each id as a field of its own.
        ids = pb.TokenIds.FromString(message.SerializeToString()).ids
        return np.array(ids, "<u4").tobytes()
    packed = np.frombuffer(b"".join(message.ids), np.uint8)
    found = np.empty(len(packed), np.uint32)
    count = unpack(packed, found)
    if count < 0:
        raise BadRequestError(field, "holds something that is no unsigned 32-bit integer")
    return found[:count].tobytes()
