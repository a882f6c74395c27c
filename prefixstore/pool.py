"""The tokenizer pool: text in, tokens out, without ever holding up the event loop.

What the store knows is taken from it. A short rest is tokenised on the spot; a long one goes to a
thread (`tokenizers` runs without the interpreter lock). The same text asked for twice at once is
tokenised once. A caller's time bounds its own wait, not the work: what is not ready by then is ready
for the next one.
"""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import xxhash

from prefixstore.store import PrefixStore
from prefixstore.tokenizer import Tokenizer, check_text

INLINE_CHARS = 2048
"""An unknown rest up to this length is tokenised on the loop: less than a thread's hand-over costs."""


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
    """Those that the store already knew."""


@dataclass(slots=True)
class PoolStats:
    """What is going on; plain numbers, exported by the process."""

    waiting_prompts: int = 0
    waiting_bytes: int = 0
    encoded_chars: int = 0
    timeouts: int = 0
    refused: int = 0


class TokenizerPool:
    """Tokenises with the tokenizers it is given. Use from one event loop; `close` it at the end."""

    def __init__(
        self, store: PrefixStore, *, workers: int, max_prompts: int, max_bytes: int
    ) -> None:
        self.stats = PoolStats()
        self.store = store
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="tokenizer")
        self._max_prompts = max_prompts
        self._max_bytes = max_bytes
        self._jobs: dict[bytes, asyncio.Task[list[bytes]]] = {}
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

        Where that is not enough the tokens cover what is known already. Raises InvalidTextError,
        PoolFullError, PoolClosedError, and TokenizerUnavailableError where an engine is away.
        """
        if self._closed:
            raise PoolClosedError("the tokenizer pool is closed")
        raw = check_text(text)
        pieces = tokenizer.split(text)
        known = self.store.find(tokenizer_id, pieces)
        stored = sum(map(len, pieces[: len(known)]))
        whole = True
        if len(known) < len(pieces):
            if len(text) - stored <= INLINE_CHARS and not tokenizer.waits:
                known = known + self._encode_now(tokenizer_id, tokenizer, pieces, known)
            else:
                rest = await self._wait(tokenizer_id, tokenizer, raw, pieces, known, timeout)
                whole = rest is not None
                known = known + (rest or [])
        prefix = tokenizer.prefix if add_special_tokens else b""
        suffix = tokenizer.suffix if add_special_tokens and whole else b""
        covered = len(text) if whole else stored
        return Tokens(b"".join((prefix, *known, suffix)), covered, stored)

    def _encode_now(
        self,
        tokenizer_id: str,
        tokenizer: Tokenizer,
        pieces: Sequence[str],
        known: Sequence[bytes],
    ) -> list[bytes]:
        tokens = tokenizer.encode(list(pieces[len(known) :]))
        self._keep(tokenizer_id, pieces, known, tokens)
        return tokens

    def _keep(
        self,
        tokenizer_id: str,
        pieces: Sequence[str],
        known: Sequence[bytes],
        rest: Sequence[bytes],
    ) -> None:
        self.stats.encoded_chars += sum(map(len, pieces[len(known) :]))
        self.store.put(tokenizer_id, pieces, [*known, *rest])

    async def _wait(  # noqa: PLR0917  a job's parts
        self,
        tokenizer_id: str,
        tokenizer: Tokenizer,
        raw: bytes,
        pieces: Sequence[str],
        known: Sequence[bytes],
        timeout: float | None,
    ) -> list[bytes] | None:
        """Return the tokens of the pieces that are not known, None where the time is over."""
        name = xxhash.xxh3_128_digest(tokenizer_id.encode() + b"\0" + raw)
        name += len(known).to_bytes(4, "little")
        job = self._jobs.get(name)
        if job is None:
            job = self._start(name, tokenizer_id, tokenizer, len(raw), pieces, known)
        # Shielded: neither this caller's time nor its going away ends the work for the others.
        done, _ = await asyncio.wait((job,), timeout=timeout)
        if not done:
            self.stats.timeouts += 1
            return None
        return job.result()

    def _start(  # noqa: PLR0917  a job's parts
        self,
        name: bytes,
        tokenizer_id: str,
        tokenizer: Tokenizer,
        size: int,
        pieces: Sequence[str],
        known: Sequence[bytes],
    ) -> asyncio.Task[list[bytes]]:
        stats = self.stats
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
        job = asyncio.create_task(self._work(name, tokenizer_id, tokenizer, size, pieces, known))
        # Where every caller has gone, nobody else looks at how it ended.
        job.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        self._jobs[name] = job
        return job

    async def _work(  # noqa: PLR0917  a job's parts
        self,
        name: bytes,
        tokenizer_id: str,
        tokenizer: Tokenizer,
        size: int,
        pieces: Sequence[str],
        known: Sequence[bytes],
    ) -> list[bytes]:
        try:
            rest = list(pieces[len(known) :])
            loop = asyncio.get_running_loop()
            tokens = await loop.run_in_executor(self._threads, tokenizer.encode, rest)
            self._keep(tokenizer_id, pieces, known, tokens)
            return tokens
        finally:
            self.stats.waiting_prompts -= 1
            self.stats.waiting_bytes -= size
            del self._jobs[name]

    async def close(self) -> None:
        """Take nothing more and await what is being worked on."""
        self._closed = True
        if self._jobs:
            await asyncio.wait(self._jobs.values())
        self._threads.shutdown()
