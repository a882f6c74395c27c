"""Block keys kept with a text's tokens, so that a known text need not be hashed again."""

from collections.abc import Sequence

from warmpath.prefixstore.store.contract import Entry, PrefixStore
from warmpath.prefixstore.tokenizers.tokenizer import ID_BYTES

KEY_BYTES = 8


class KeyMemo:
    """The block keys of one text that its store has.

    The caller defines keys and block ends: a root names a chain of keys, and so also its block size.
    Use a memo before anything else is put into the store.
    """

    def __init__(
        self, store: PrefixStore, entries: Sequence[Entry], before: int, *, is_special: bool
    ) -> None:
        """`entries` cover the text; `before` special tokens precede their tokens."""
        self.stored_keys = 0
        """Number of keys that the store had at the last call of `keys`."""
        self.known_keys = 0
        """Number of keys that it has now, those of `keep` included."""
        self._store = store
        self._entries = entries
        self._before = before
        self._is_special = is_special

    def keys(self, root: int) -> bytes:
        """Return the leading keys that the store has, packed as 8 bytes each."""
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
        """Remember a text's leading keys, 8 bytes each; `block_size` is in tokens."""
        self.known_keys = len(keys) // KEY_BYTES
        label = (root, self._is_special)
        tokens = self._before
        done = 0
        entries, shares = [], []
        for entry in self._entries:
            tokens += len(entry.tokens) // ID_BYTES
            end = tokens // block_size * KEY_BYTES
            if end > len(keys):
                break  # `keys` end before this entry does
            if entry.label != label:
                entries.append(entry)
                shares.append(keys[done:end])
            done = end
        self._store.keep_keys(entries, label, shares)
