"""The reference store: a dict of whole beginnings, never forgetting."""

from collections.abc import Sequence

from prefixstore.store import StoreStats


class ReferenceStore:
    """Remembers every beginning as it is. Obviously right, and unbounded."""

    def __init__(self) -> None:
        self.stats = StoreStats()
        self._tokens: dict[tuple[str, tuple[str, ...]], bytes] = {}

    def find(self, space: str, pieces: Sequence[str]) -> list[bytes]:
        """Return the tokens of the leading pieces that are known."""
        found: list[bytes] = []
        for end in range(1, len(pieces) + 1):
            tokens = self._tokens.get((space, tuple(pieces[:end])))
            if tokens is None:
                break
            found.append(tokens)
        self.stats.hit_pieces += len(found)
        self.stats.missed_pieces += len(pieces) - len(found)
        return found

    def put(self, space: str, pieces: Sequence[str], tokens: Sequence[bytes]) -> None:
        """Remember the tokens of all pieces of a text."""
        for end, ids in enumerate(tokens, 1):
            self._tokens[space, tuple(pieces[:end])] = ids
        self.stats.entries = len(self._tokens)

    def check(self) -> None:
        """Do nothing: there is nothing to contradict."""
