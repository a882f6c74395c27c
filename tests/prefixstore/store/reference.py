"""The reference store: a dict from whole beginnings of texts to entries, without eviction."""

from collections.abc import Sequence

from warmpath.prefixstore.store.contract import Entry, StoreStats, relabel


class ReferenceStore:
    """Keeps every beginning as a tuple of slices: simple, and unbounded."""

    def __init__(self) -> None:
        self.stats = StoreStats()
        self._entries: dict[tuple[bytes, ...], Entry] = {}

    def find(self, slices: Sequence[bytes]) -> list[Entry]:
        """Return the entries of the leading slices that are known."""
        found: list[Entry] = []
        for end in range(1, len(slices) + 1):
            entry = self._entries.get(tuple(slices[:end]))
            if entry is None:
                break
            found.append(entry)
        self.stats.looked_up(slices, len(found))
        return found

    def put(self, slices: Sequence[bytes], entries: Sequence[Entry]) -> None:
        """Remember the entries of a text's leading slices."""
        for end, entry in enumerate(entries, 1):
            kept = self._entries.setdefault(tuple(slices[:end]), entry)
            kept.is_kept = True
        self.stats.entries = len(self._entries)

    def keep_keys(self, entries: Sequence[Entry], label: object, keys: Sequence[bytes]) -> None:
        """Remember each entry's block keys under `label`, in place of another label's keys."""
        relabel(entries, label, keys)
