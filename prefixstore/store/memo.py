"""Block keys kept beside a text's tokens, so that a warm text is not hashed again."""

from collections.abc import Sequence

from prefixstore.store.contract import Entry, PrefixStore
from prefixstore.tokenizers.ids import ID_BYTES

KEY_BYTES = 8


class KeyMemo:
    """The block keys of one text, as far as its store has them.

    What a key is and where blocks end is the caller's business: a root names the chain of keys, and
    with it the size of a block. Use it before anything else is put into the store.
    """

    def __init__(
        self, store: PrefixStore, entries: Sequence[Entry], before: int, *, is_special: bool
    ) -> None:
        """Remember keys with `entries`; `before` tokens come before theirs."""
        self.stored_keys = 0
        """Keys that the store had, when it was last asked."""
        self.known_keys = 0
        """And those that are known since."""
        self._store = store
        self._entries = entries
        self._before = before
        self._is_special = is_special

    def keys(self, root: int) -> bytes:
        """Return the leading keys that are known, packed as 8 bytes each."""
        label = (root, self._is_special)
        found = []
        for entry in self._entries:
            if entry.label != label:
                break
            found.append(entry.keys)
        keys = b"".join(found)
        self.stored_keys = self.known_keys = len(keys) // KEY_BYTES
        return keys

    def keep(self, root: int, block_size: int, keys: bytes) -> None:
        """Remember a text's leading keys, of blocks of so many tokens."""
        self.known_keys = len(keys) // KEY_BYTES
        label = (root, self._is_special)
        tokens = self._before
        done = 0
        entries, shares = [], []
        for entry in self._entries:
            tokens += len(entry.tokens) // ID_BYTES
            end = tokens // block_size * KEY_BYTES
            if end > len(keys):
                break  # its last key is not among them
            if entry.label != label:
                entries.append(entry)
                shares.append(keys[done:end])
            done = end
        self._store.keep_keys(entries, label, shares)
