"""One rank's ingestion as one process saves it for the next."""

import msgspec

from warmpath.indexer.resolve.saved import SavedResolver
from warmpath.indexer.stream.machine import SavedStream


class SavedRank(msgspec.Struct, frozen=True):
    """One rank's ingestion, from which the next process goes on."""

    pod: str
    rank: int
    model: str
    capacity: int
    stream: SavedStream
    resolver: SavedResolver
    limit: str = ""
    """Why the rank is degraded at best for as long as the engine lives; empty: no reason."""
