"""One request: its tokens so far, and the hashes of its full blocks.

Source: `vllm/v1/request.py`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from simworker.v1.block_hash import Extra, block_hash


@dataclass(frozen=True, slots=True)
class Hasher:
    """What the hashes of one engine have in common."""

    block_size: int
    none_hash: bytes


class Request:
    """A prompt and what has been generated. Hashes grow as blocks become full."""

    __slots__ = (
        "_hasher", "arrival", "block_hashes", "cache_salt", "lora_name", "max_tokens",
        "num_cached_tokens", "num_computed_tokens", "num_preemptions", "num_prompt_tokens",
        "request_id", "skip_reading_prefix_cache", "token_ids",
    )  # fmt: skip

    def __init__(
        self,
        request_id: str,
        prompt: Sequence[int],
        *,
        hasher: Hasher,
        max_tokens: int,
        cache_salt: str = "",
        lora_name: str = "",
        skip_reading_prefix_cache: bool = False,
    ) -> None:
        self.request_id = request_id
        self.token_ids = list(prompt)
        self.num_prompt_tokens = len(self.token_ids)
        self.max_tokens = max_tokens
        self.cache_salt = cache_salt
        self.lora_name = lora_name
        self.skip_reading_prefix_cache = skip_reading_prefix_cache
        self.num_computed_tokens = 0
        self.num_cached_tokens = -1
        """Tokens found cached when it was first scheduled; -1 before."""
        self.num_preemptions = 0
        self.block_hashes: list[bytes] = []
        self._hasher = hasher
        self._hash_full_blocks()

    @property
    def num_tokens(self) -> int:
        """Prompt and generated tokens."""
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        """Generated tokens."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def is_finished(self) -> bool:
        """Whether all that was asked for is generated."""
        return self.num_output_tokens >= self.max_tokens

    def append(self, token: int) -> None:
        """Take a generated token."""
        self.token_ids.append(token)
        if len(self.token_ids) % self._hasher.block_size == 0:
            self._hash_full_blocks()

    def extra_keys(self, block: int) -> list[str] | None:
        """Return a block's extra keys in the bare form that events carry."""
        keys = [self.lora_name] if self.lora_name else []
        if self.cache_salt and not block:
            keys.append(self.cache_salt)
        return keys or None

    def _hash_full_blocks(self) -> None:
        size = self._hasher.block_size
        hashes = self.block_hashes
        lora: Extra = (("lora", self.lora_name, self.lora_name),) if self.lora_name else ()
        for number in range(len(hashes), len(self.token_ids) // size):
            extra = lora
            if self.cache_salt and not number:
                extra = (*lora, ("cache_salt", self.cache_salt))
            parent = hashes[-1] if hashes else self._hasher.none_hash
            tokens = self.token_ids[number * size : (number + 1) * size]
            hashes.append(block_hash(parent, tokens, extra))
