"""Roots, the keys before a prompt's first block, by adapter, salt and block size."""

from warmpath.indexer.keys.key import Keyspace

MOST = 4096
"""The most roots remembered (adapters times salts); past that all are forgotten and computed again."""


class Roots:
    """Remembers the roots of one model and hash seed."""

    def __init__(self, model: str, hash_seed: str) -> None:
        self._model = model
        self._hash_seed = hash_seed
        self._roots: dict[tuple[str, str, int], int] = {}
        self.adapters: set[str] = set()
        """The adapters of the remembered roots."""

    def known(self, lora: str, cache_salt: str, size: int) -> int | None:
        """Return a root; None where it is not remembered."""
        return self._roots.get((lora, cache_salt, size))

    def root(self, lora: str, cache_salt: str, size: int) -> int:
        """Return a root; `size` is the number of tokens of a block."""
        root = self.known(lora, cache_salt, size)
        if root is None:
            if len(self._roots) >= MOST:
                self._roots.clear()
                self.adapters.clear()
            if lora:
                self.adapters.add(lora)
            root = Keyspace(
                model=self._model,
                block_size=size,
                lora=lora,
                cache_salt=cache_salt,
                hash_seed=self._hash_seed,
            ).root()
            self._roots[lora, cache_salt, size] = root
        return root
