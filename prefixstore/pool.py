"""The tokenizer pool: text in, tokens out, without ever holding up the event loop.

What a tokenizer's store knows is taken from it. A short rest is tokenised on the spot; a long one goes
to a thread (`tokenizers` runs without the interpreter lock). The same text asked for twice at once is
tokenised once. A caller's time bounds its own wait, not the work: what is not ready by then is ready
for the next one.
"""

import asyncio
import weakref
from collections.abc import Callable
from dataclasses import dataclass

from prefixstore.cuts.slices import CUT_BYTES, slices_of
from prefixstore.store.contract import Entry, PrefixStore
from prefixstore.store.memo import KeyMemo
from prefixstore.tokenizers.ids import ID_BYTES
from prefixstore.tokenizers.tokenizer import (
    InvalidTextError,
    Tokenizer,
    TokenizerUnavailableError,
    check_text,
)
from prefixstore.workers import Workers, WorkFailedError, outcome

INLINE_BYTES = 4096
"""An unknown rest up to this length is tokenised on the loop, in about a millisecond.

A turn of a conversation mostly is, and to hand it to a thread and wait would take a fifth longer.
"""


class PoolFullError(Exception):
    """So much is waiting that no more is taken."""


class PoolClosedError(Exception):
    """The pool takes nothing any more."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """A text's tokens, as far as they are known."""

    ids: bytes
    """Packed little-endian uint32."""
    covered_chars: int
    """Leading characters of the text that `ids` stand for."""
    stored_chars: int
    """Those that the store already knew the tokens of."""
    stored_tokens: int
    memo: KeyMemo
    """Where its block keys are kept."""


@dataclass(slots=True)
class PoolStats:
    """What is going on; plain numbers, exported by the process."""

    waiting_prompts: int = 0
    waiting_bytes: int = 0
    encoded_bytes: int = 0
    timeouts: int = 0
    refused: int = 0
    failed: int = 0


Name = tuple[Tokenizer, bytes]
"""Of a text that is being tokenised: by whom, and the text itself."""


@dataclass(frozen=True, slots=True)
class Text:
    """A text, and what is known of it."""

    tokenizer: Tokenizer
    store: PrefixStore
    raw: bytes
    slices: list[bytes]
    known: list[Entry]
    covered: int
    """Bytes that the known tokens stand for."""


class TokenizerPool:
    """Tokenises with any tokenizer. Use from one event loop; `close` it at the end.

    Each tokenizer has a store of its own, so none is pushed out of memory by another's texts.
    """

    def __init__(
        self,
        new_store: Callable[[], PrefixStore],
        workers: Workers,
        *,
        max_prompts: int,
        max_bytes: int,
    ) -> None:
        self.stats = PoolStats()
        self.stores: dict[str, PrefixStore] = {}
        self._tokenizers: dict[str, weakref.ref[Tokenizer]] = {}
        """Whose texts they are; how long a tokenizer is kept is not decided here."""
        self._new_store = new_store
        self.workers = workers
        self._max_prompts = max_prompts
        self._max_bytes = max_bytes
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

        Where that is not enough the tokens cover what is known already. `tokenizer_id` names what is
        kept of the tokenizer's texts. Raises InvalidTextError, PoolFullError, PoolClosedError, and
        TokenizerUnavailableError for a tokenizer that fails.
        """
        if self._closed:
            raise PoolClosedError("the tokenizer pool is closed")
        raw = check_text(text)
        store = self._store(tokenizer_id, tokenizer)
        slices = slices_of(raw) if tokenizer.has_cuts else [raw]
        known = store.find(slices)
        stored = sum(map(len, slices[: len(known)])) - known[-1].tail if known else 0
        entries: list[Entry] | None = known
        if len(known) < len(slices):
            job = Text(tokenizer, store, raw, slices, known, stored)
            # What is proven of a tokenizer also bounds its time; any other may hang.
            if len(raw) - stored <= INLINE_BYTES and tokenizer.has_cuts:
                found, error = outcome(lambda: _encode(job))
                if error is not None:
                    raise self._failure(tokenizer_id, error)
                entries = self._keep(job, found or [])
            else:
                entries = await self._wait(tokenizer_id, job, timeout)
        tokens = [entry.tokens for entry in (known if entries is None else entries)]
        prefix = tokenizer.prefix if add_special_tokens else b""
        suffix = tokenizer.suffix if add_special_tokens and entries is not None else b""
        memo = KeyMemo(
            store,
            known if entries is None else entries,
            len(prefix) // ID_BYTES,
            is_special=add_special_tokens,
        )
        is_plain = stored == len(raw) or len(raw) == len(text)
        stored_chars = min(stored, len(text)) if is_plain else len(raw[:stored].decode())
        return Tokens(
            ids=b"".join((prefix, *tokens, suffix)),
            covered_chars=stored_chars if entries is None else len(text),
            stored_chars=stored_chars,
            stored_tokens=sum(map(len, tokens[: len(known)])) // ID_BYTES,
            memo=memo,
        )

    def _store(self, tokenizer_id: str, tokenizer: Tokenizer) -> PrefixStore:
        """Return a tokenizer's store: a new one where another has taken the id."""
        known = self._tokenizers.get(tokenizer_id)
        if known is None or known() is not tokenizer:
            self._tokenizers[tokenizer_id] = weakref.ref(tokenizer)
            self.stores[tokenizer_id] = self._new_store()
        return self.stores[tokenizer_id]

    def _keep(self, text: Text, more: list[Entry]) -> list[Entry]:
        entries = text.known + more
        self.stats.encoded_bytes += len(text.raw) - text.covered
        text.store.put(text.slices, entries)
        return entries

    async def _wait(
        self, tokenizer_id: str, text: Text, timeout: float | None
    ) -> list[Entry] | None:
        """Return the entries of the whole text, None where the time is over."""
        name = text.tokenizer, text.raw
        job = self._jobs.get(name)
        if job is None:
            job = self._start(name, tokenizer_id, text)
        # Shielded: neither this caller's time nor its going away ends the work for the others.
        done, _ = await asyncio.wait((job,), timeout=timeout)
        if not done:
            self.stats.timeouts += 1
            return None
        if job.cancelled():
            raise PoolClosedError("the tokenizer pool was closed")
        return job.result()

    def _start(self, name: Name, tokenizer_id: str, text: Text) -> asyncio.Task[list[Entry]]:
        stats = self.stats
        size = len(text.raw)
        if (
            stats.waiting_prompts >= self._max_prompts
            or stats.waiting_bytes + size > self._max_bytes
        ):
            stats.refused += 1
            raise PoolFullError(
                f"{stats.waiting_prompts} prompts of {stats.waiting_bytes} bytes wait for the "
                f"tokenizer; limits.max-queued-prompts is {self._max_prompts}, "
                f"limits.max-queued-bytes {self._max_bytes}"
            )
        stats.waiting_prompts += 1
        stats.waiting_bytes += size
        job = asyncio.create_task(self._work(name, tokenizer_id, text))
        # Where every caller has gone, nobody else looks at how it ended.
        job.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        self._jobs[name] = job
        return job

    async def _work(self, name: Name, tokenizer_id: str, text: Text) -> list[Entry]:
        try:
            return self._keep(text, await self.workers.run(lambda: _encode(text)))
        except Exception as error:
            raise self._failure(tokenizer_id, error) from error
        finally:
            self.stats.waiting_prompts -= 1
            self.stats.waiting_bytes -= len(text.raw)
            del self._jobs[name]

    def _failure(self, tokenizer_id: str, error: BaseException) -> BaseException:
        """Return what a caller is told of an error."""
        if isinstance(error, InvalidTextError):
            return error
        self.stats.failed += 1
        if not isinstance(error, TokenizerUnavailableError | WorkFailedError):
            error = WorkFailedError(f"it fails on this text: {type(error).__name__}: {error}")
        return TokenizerUnavailableError(f"the tokenizer of {tokenizer_id}: {error}")

    async def close(self) -> None:
        """Take nothing more, and wait for nothing: a thread may hang. Callers are told."""
        self._closed = True
        jobs = list(self._jobs.values())
        for job in jobs:
            job.cancel()
        if jobs:
            await asyncio.wait(jobs)
        self.workers.close()


def _encode(text: Text) -> list[Entry]:
    """Tokenise what is not known of a text; return the entries of its other slices."""
    parts = []
    entries = []
    begin = text.covered
    end = sum(map(len, text.slices[: len(text.known)]))
    for piece in text.slices[len(text.known) : -1]:
        end += len(piece)
        # Where the last slice ended without a cut there is none before this one.
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
