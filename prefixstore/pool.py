"""The tokenizer pool: turns texts into tokens without blocking the event loop.

Where `fastokens` encodes, a text of up to 16 KiB is encoded whole, at once. Otherwise tokens of a known
beginning come from the tokenizer's store. A short rest is tokenised on the loop if the tokenizer has
proven cuts; any other rest goes to a thread (encoders run without the interpreter lock). Concurrent
calls with the same text share one tokenisation. A caller's timeout ends its wait and not the work, so
the result is stored for the next caller.
"""

import asyncio
import time
import weakref
from collections.abc import Callable, Sequence
from contextvars import copy_context
from functools import partial

import msgspec

from warmpath.prefixstore.cuts.proof import CUT_BYTES, FAST_SLICE, SLICE, slices_of
from warmpath.prefixstore.rechecks import Rechecks
from warmpath.prefixstore.store import Entry, PrefixStore
from warmpath.prefixstore.tokenizers.tokenizer import (
    ID_BYTES,
    Asking,
    FolderTokenizer,
    InvalidTextError,
    Tokenizer,
    TokenizerUnavailableError,
    check_text,
)
from warmpath.prefixstore.workers import ClosedError, Waiting, Workers, WorkFailedError, outcome

INLINE_BYTES = 4096
"""An unknown rest up to this length may be tokenised on the loop, in about a millisecond.

Most turns of a conversation are shorter, and a hand-over to a thread would take a fifth longer.
"""

LONG_BYTES = 256 << 10
"""To encode, slice or look up a longer text takes milliseconds each: other tasks may run in between."""


RECHECKED_SLICES = 4
"""Slices at a long text's end that are offered to be encoded again."""

KEY_BYTES = 8


class KeyMemo:
    """The block keys of one text that its store has.

    The caller computes the keys; `root` is its number for their chain (keyspace and block size). Use a
    memo before anything else is put into the store.
    """

    def __init__(
        self, store: PrefixStore, entries: Sequence[Entry], before: int, *, is_special: bool
    ) -> None:
        """`entries` cover the text; if special tokens were added (`is_special`), `before` precede it."""
        self.stored_keys = 0
        """Number of keys that the store had at the last call of `keys`."""
        self.known_keys = 0
        """Number of keys that the store has now, those of `keep` included."""
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


class Tokens(msgspec.Struct, frozen=True):
    """The tokens of a text, or of its beginning if the rest was not ready in time."""

    ids: bytes
    """Packed little-endian uint32."""
    covered_chars: int
    """Length in characters of the beginning that `ids` cover."""
    stored_chars: int = 0
    """Length in characters of the beginning whose tokens were in the store."""
    stored_tokens: int = 0
    """Number of tokens that were in the store."""
    memo: KeyMemo | None = None
    """The store's block keys of this text; None if it needed no store."""


Name = tuple[Tokenizer, bytes]
"""Identifies a tokenisation that runs: the tokenizer and the text's UTF-8."""


class Text(msgspec.Struct, frozen=True):
    """A text to tokenise, with the entries of its beginning that the store has."""

    tokenizer: Tokenizer
    store: PrefixStore
    raw: bytes
    slices: list[bytes]
    known: list[Entry]
    covered: int
    """Bytes of the text that the known tokens cover."""


class TokenizerPool:
    """Tokenises texts with any tokenizer. Use from one event loop; `close` it at the end.

    Each tokenizer has its own store, so one tokenizer's texts never evict another's.
    """

    def __init__(
        self,
        new_store: Callable[[], PrefixStore],
        workers: Workers,
        *,
        max_prompts: int,
        max_bytes: int,
        asking: Workers | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`asking` are the threads of tokenizers that ask engines; None: `workers`, as of all others.

        `clock` returns seconds.
        """
        self.encoded_bytes = 0
        self.timeouts = 0
        self.failed = 0
        self.waiting = Waiting(
            "prompts", "for the tokenizer", most=max_prompts, most_bytes=max_bytes
        )
        self.stores: dict[str, PrefixStore] = {}
        self._tokenizers: dict[str, weakref.ref[Tokenizer]] = {}
        """The tokenizer of each store, weakly: TokenizerCache decides how long tokenizers live."""
        self._new_store = new_store
        self.workers = workers
        self.asking = asking or workers
        self.rechecks = Rechecks(workers, self.waiting, self._forget, clock)
        self._jobs: dict[Name, asyncio.Task[list[Entry]]] = {}
        self._closed = False

    async def encode(
        self,
        tokenizer_id: str,
        tokenizer: Tokenizer,
        text: str,
        *,
        add_special_tokens: bool,
        timeout: float | None,
    ) -> Tokens:
        """Tokenise a text, waiting at most `timeout` seconds.

        After that time the result has only the tokens that the store had. `tokenizer_id` names the
        store. Raises InvalidTextError, FullError, ClosedError, and TokenizerUnavailableError
        for a tokenizer that fails.
        """
        if self._closed:
            raise ClosedError("the tokenizer pool is closed")
        raw = check_text(text)
        store = self._store(tokenizer_id, tokenizer)
        fast = tokenizer if isinstance(tokenizer, FolderTokenizer) else None
        at_once = fast.at_once_bytes if fast else 0
        if fast and at_once and len(raw) <= at_once:
            return self._at_once(tokenizer_id, fast, text, raw, special=add_special_tokens)
        await _turn_if_long(raw)
        size = FAST_SLICE if at_once else SLICE
        slices = slices_of(raw, size) if tokenizer.has_cuts else [raw]
        await _turn_if_long(raw)
        known = store.find(slices)
        await _turn_if_long(raw)
        stored = sum(map(len, slices[: len(known)])) - known[-1].tail if known else 0
        whole: list[Entry] | None = known
        if len(known) < len(slices):
            job = Text(tokenizer, store, raw, slices, known, stored)
            # A definition with proven cuts also has bounded time; any other may hang.
            if len(raw) - stored <= (at_once or INLINE_BYTES) and tokenizer.has_cuts:
                found, error = outcome(lambda: _encode(job))
                if error is not None:
                    raise self._failure(tokenizer_id, error)
                whole = self._keep(job, found or [])
            else:
                whole = await self._wait(tokenizer_id, job, timeout)
        if fast and at_once and whole is not None and self.rechecks.is_due():
            self._recheck(tokenizer_id, fast, raw, slices, whole)
        entries = known if whole is None else whole
        tokens = [entry.tokens for entry in entries]
        prefix = tokenizer.prefix if add_special_tokens else b""
        suffix = tokenizer.suffix if add_special_tokens and whole is not None else b""
        is_plain = stored == len(raw) or len(raw) == len(text)
        stored_chars = min(stored, len(text)) if is_plain else len(raw[:stored].decode())
        return Tokens(
            ids=b"".join((prefix, *tokens, suffix)),
            covered_chars=stored_chars if whole is None else len(text),
            stored_chars=stored_chars,
            stored_tokens=sum(map(len, tokens[: len(known)])) // ID_BYTES,
            memo=KeyMemo(store, entries, len(prefix) // ID_BYTES, is_special=add_special_tokens),
        )

    def _at_once(
        self, tokenizer_id: str, tokenizer: FolderTokenizer, text: str, raw: bytes, *, special: bool
    ) -> Tokens:
        found, error = outcome(partial(tokenizer.encode_at_once, text))
        if found is None:
            assert error is not None
            raise self._failure(tokenizer_id, error)
        self.encoded_bytes += len(raw)
        if self.rechecks.is_due():
            self.rechecks.offer(tokenizer_id, tokenizer, raw, found, at_start=True)
        if special:
            found = b"".join((tokenizer.prefix, found, tokenizer.suffix))
        return Tokens(found, len(text))

    def _recheck(
        self,
        tokenizer_id: str,
        tokenizer: FolderTokenizer,
        raw: bytes,
        slices: Sequence[bytes],
        entries: Sequence[Entry],
    ) -> None:
        first = max(0, len(slices) - RECHECKED_SLICES)
        begin = sum(map(len, slices[:first])) - (entries[first - 1].tail if first else 0)
        ids = b"".join([entry.tokens for entry in entries[first:]])
        self.rechecks.offer(tokenizer_id, tokenizer, raw[begin:], ids, at_start=not begin)

    def _store(self, tokenizer_id: str, tokenizer: Tokenizer) -> PrefixStore:
        """Return a tokenizer's store; a new one if the id belonged to another tokenizer before."""
        known = self._tokenizers.get(tokenizer_id)
        if known is None or known() is not tokenizer:
            self._tokenizers[tokenizer_id] = weakref.ref(tokenizer)
            self._forget(tokenizer_id)
            if isinstance(tokenizer, FolderTokenizer):
                self.rechecks.met(tokenizer_id, tokenizer)
        return self.stores[tokenizer_id]

    def _forget(self, tokenizer_id: str) -> None:
        """Take a new store for a tokenizer, whose tokens in the old one may be wrong."""
        self.stores[tokenizer_id] = self._new_store()

    def _keep(self, text: Text, more: list[Entry]) -> list[Entry]:
        entries = text.known + more
        self.encoded_bytes += len(text.raw) - text.covered
        text.store.put(text.slices, entries)
        return entries

    async def _wait(
        self, tokenizer_id: str, text: Text, timeout: float | None
    ) -> list[Entry] | None:
        name = text.tokenizer, text.raw
        job = self._jobs.get(name)
        if job is None:
            self.waiting.enter(len(text.raw))
            job = self._jobs[name] = asyncio.create_task(self._work(name, tokenizer_id, text))
            # Retrieves the exception, which nobody else does if all callers have left.
            job.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        # `wait` does not cancel the job: a caller that times out or leaves must not end it for others.
        done, _ = await asyncio.wait((job,), timeout=timeout)
        if not done:
            self.timeouts += 1
            return None
        if job.cancelled():
            raise ClosedError("the tokenizer pool was closed")
        return job.result()

    async def _work(self, name: Name, tokenizer_id: str, text: Text) -> list[Entry]:
        try:
            # In the context of the first caller, whose trace an engine's tokenizer is told of.
            workers = self.asking if isinstance(text.tokenizer, Asking) else self.workers
            return self._keep(text, await workers.run(partial(copy_context().run, _encode, text)))
        except Exception as error:
            raise self._failure(tokenizer_id, error) from error
        finally:
            self.waiting.leave(len(text.raw))
            del self._jobs[name]

    def _failure(self, tokenizer_id: str, error: BaseException) -> BaseException:
        """Return the exception that a caller gets for an error; count failures."""
        if isinstance(error, InvalidTextError):
            return error
        self.failed += 1
        if not isinstance(error, TokenizerUnavailableError | WorkFailedError):
            error = WorkFailedError(f"it fails on this text: {type(error).__name__}: {error}")
        # Chats have a line more.
        name = tokenizer_id.partition("\n")[0]
        return TokenizerUnavailableError(f"the tokenizer of {name}: {error}")

    async def close(self) -> None:
        """Refuse new texts and fail the waiting callers, without waiting for threads: one may hang."""
        self._closed = True
        jobs = [*self._jobs.values(), *self.rechecks.under_way()]
        for job in jobs:
            job.cancel()
        if jobs:
            await asyncio.wait(jobs)
        self.workers.close()
        self.asking.close()


async def _turn_if_long(raw: bytes) -> None:
    if len(raw) > LONG_BYTES:
        await asyncio.sleep(0)


def _encode(text: Text) -> list[Entry]:
    parts = []
    entries = []
    begin = text.covered
    end = sum(map(len, text.slices[: len(text.known)]))
    for piece in text.slices[len(text.known) : -1]:
        end += len(piece)
        # If the last slice had no cut after `begin`, there is none before this slice either.
        since = max(begin, end - len(piece) - CUT_BYTES)
        cut = text.tokenizer.cut(text.raw, since, end)
        has_part = cut > since
        if has_part:
            parts.append(text.raw[begin:cut])
            begin = cut
        entries.append((has_part, end - begin))
    parts.append(text.raw[begin:])
    tokens = iter(text.tokenizer.encode(parts, at_start=not text.covered))
    return [
        Entry(next(tokens) if has_part else b"", tail) for has_part, tail in (*entries, (True, 0))
    ]
