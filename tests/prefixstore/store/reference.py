"""The reference store: a dict from whole beginnings of texts to entries, without eviction."""

from collections.abc import Sequence

from warmpath.prefixstore.store.contract import Entry, PrefixStore


class ReferenceStore(PrefixStore):
    """Keeps every beginning as a tuple of slices: simple, and unbounded."""

    def __init__(self) -> None:
        super().__init__(0)
        self._entries: dict[tuple[bytes, ...], Entry] = {}

    def find(self, slices: Sequence[bytes]) -> list[Entry]:
        found: list[Entry] = []
        for end in range(1, len(slices) + 1):
            entry = self._entries.get(tuple(slices[:end]))
            if entry is None:
                break
            found.append(entry)
        self.stats.looked_up(slices, len(found))
        return found

    def put(self, slices: Sequence[bytes], entries: Sequence[Entry]) -> None:
        for end, entry in enumerate(entries, 1):
            kept = self._entries.setdefault(tuple(slices[:end]), entry)
            kept.is_kept = True
        self.stats.entries = len(self._entries)

    def _make_room(self) -> None:
        """Evict nothing."""
