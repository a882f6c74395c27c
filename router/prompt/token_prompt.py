"""A prompt as the tokens that engines cache, and its blocks that a request could find cached."""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import zip_longest
from typing import Literal, Protocol

import msgspec
from msgspec.structs import replace

from warmpath.indexer.embedded import packed_keys
from warmpath.indexer.engines.cache_groups import Lookahead
from warmpath.indexer.keys.key import (
    TOKEN_BYTES,
    WORD_BYTES,
    Chain,
    Item,
    Keyspace,
    extras_of,
    next_token,
    unpack_tokens,
    unpack_words,
)

BLIND = "\nbytes of texts in place of tokens"
"""Is added to the hash seed for the keys of blind prompts (`TokenPrompt.is_blind`)."""

Form = Literal["ids", "text", "chat"]
"""The form in which a request gives its prompt."""


Blind = Literal["tokenizer", "template", "time", "body", "blocks"]
"""Why a pick knows no cached token of a prompt: the part that is missing, late or unreadable."""


class Memo(Protocol):
    """Keeps the block keys of a text; `prefixstore.pool`, which imports tokenizers, implements it."""

    def keys(self, root: int) -> bytes:
        """Return the leading keys that are known in the keyspace of `root`, packed."""

    def keep(self, root: int, block_size: int, keys: bytes) -> None:
        """Remember a text's leading packed keys in the keyspace of `root`; `block_size` is in tokens."""


class TokenPrompt(msgspec.Struct, frozen=True, eq=False):
    """A prompt as engines cache it; two prompts are equal if engines cache them alike.

    `ids` are packed little-endian uint32. `reads_cache` is False if an engine computes the whole prompt,
    whatever its cache holds (`router.prompt.bodies.openai.reads_cache`). `memo` is set for a text. If
    `is_whole`, all full blocks count, those too that a request could not find cached.

    If `is_blind`, the tokens are not known, and four bytes of the text stand in `ids` for each. Its keys
    then match those of other blind prompts alone: no engine's blocks have them. `text` are such bytes of
    a prompt whose tokens are known this time, and may not be the next time; empty if they always are.
    """

    model: str
    ids: bytes
    lora: str = ""
    cache_salt: str = ""
    extra_key: str = ""
    items: tuple[Item, ...] = ()
    reads_cache: bool = True
    memo: Memo | None = None
    is_whole: bool = False
    is_blind: bool = False
    text: bytes = b""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TokenPrompt) and self._cached_as == other._cached_as

    def __hash__(self) -> int:
        return hash(self._cached_as)

    @property
    def _cached_as(self) -> tuple[object, ...]:
        named = self.model, self.lora, self.cache_salt, self.extra_key
        return self.ids, named, self.items, self.reads_cache, self.is_whole, self.is_blind

    @property
    def tokens(self) -> int:
        """The number of known tokens."""
        return 0 if self.is_blind else len(self.ids) // TOKEN_BYTES

    @property
    def by_bytes(self) -> "TokenPrompt | None":
        """The prompt with keys of its text's bytes, as if no tokens were known; None without text."""
        return blinded(self, self.text) if self.text else None

    @property
    def _places(self) -> int:
        return len(self.ids) // TOKEN_BYTES

    def chain(
        self, block_size: int, hash_seed: str, *, lookahead: Lookahead = Lookahead.NONE
    ) -> Chain:
        """Return the keys of the blocks that a request could find cached, or of all if `is_whole`.

        Engines always compute the last token, so a block that ends with it does not count. With
        `lookahead` a block's key includes the token after it, so that token must exist. Keys of bytes
        are compared with each other alone, and need none.
        """
        if self.is_blind:
            lookahead = Lookahead.NONE
        anew = (0 if self.is_whole else 1) + (lookahead is Lookahead.PAIRS)
        if lookahead:
            anew = max(anew, 1)
        blocks = max(0, self._places - anew) // block_size if self.reads_cache else 0
        apart = self.lora, self.cache_salt, self.extra_key
        alone = bool(self.cache_salt or self.extra_key)
        # A salt or an extra key comes in few requests, so caching its root would be of no use.
        find = _root.__wrapped__ if alone else _root
        seed = hash_seed + BLIND if self.is_blind else hash_seed
        root = find(self.model, block_size, apart, seed)
        extras: Sequence[bytes | None] = ()
        if self.items and lookahead is not Lookahead.PAIRS:
            extras = extras_of(self.items, block_size, blocks, after=int(bool(lookahead))) or ()
        if lookahead:
            ids = unpack_tokens(self.ids)
            first = [next_token(ids[(block + 1) * block_size]) for block in range(blocks)]
            extras = [
                (extra or b"") + token for extra, token in zip_longest(extras, first, fillvalue=b"")
            ]
        made = b""
        if self.memo and blocks and not extras:
            made = self._made(self.memo, root, block_size)[: blocks * WORD_BYTES]
        return Chain(root, self.ids, block_size, blocks, extras, made)

    def _made(self, memo: Memo, root: int, block_size: int) -> bytes:
        """Return the keys of all full blocks; compute only those that `memo` lacks."""
        made = memo.keys(root)
        done, blocks = len(made) // WORD_BYTES, self._places // block_size
        if done < blocks:
            parent = unpack_words(made[-WORD_BYTES:])[0] if done else root
            rest = self.ids[done * block_size * TOKEN_BYTES :]
            made += packed_keys(Chain(parent, rest, block_size, blocks - done))
            memo.keep(root, block_size, made)
        return made


def blinded(prompt: TokenPrompt, text: bytes) -> TokenPrompt:
    """Return a prompt with bytes of its text in place of its tokens (`TokenPrompt.is_blind`)."""
    whole = text[: len(text) // TOKEN_BYTES * TOKEN_BYTES]
    return replace(prompt, ids=whole, items=(), memo=None, is_blind=True, text=b"")


class ReadPrompt(msgspec.Struct, frozen=True):
    """A prompt with its tokens."""

    prompt: TokenPrompt
    covered_chars: int
    """Characters of the text that the tokens cover; 0 for token ids, and for a chat that the engine
    rendered."""
    lora_path: str = ""
    """The adapter that a body names in SGLang's field `lora_path`."""
    unread: int = 0
    """Estimated tokens of the part of the text that was not tokenised."""
    unread_because: str = ""
    blind: Blind | None = None
    """Why no token of the prompt's text is known; None: tokens are known, or were given."""
    form: Form = "ids"
    """The prompt's form in the request."""
    session: str = ""
    """The session that the prompt's body names; empty if it names none."""

    def apart(self, engines: Iterable[str]) -> TokenPrompt:
        """Return the prompt with the namespace that pods of these engines use.

        Engines other than SGLang ignore SGLang's own fields.
        """
        prompt = self.prompt
        if not (self.lora_path or prompt.extra_key):
            return prompt
        if "sglang" not in engines:
            return replace(prompt, extra_key="") if prompt.extra_key else prompt
        adapter = prompt.lora or self.lora_path
        return prompt if adapter == prompt.lora else replace(prompt, lora=adapter)


@lru_cache(4096)
def _root(model: str, block_size: int, apart: tuple[str, str, str], hash_seed: str) -> int:
    lora, cache_salt, extra_key = apart
    return Keyspace(model, block_size, lora, cache_salt, hash_seed, extra_key).root()
