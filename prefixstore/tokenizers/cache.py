"""A bounded cache of loaded tokenizers; concurrent callers share one load.

Each load runs in its own thread and goes on when its callers leave. A failed load is remembered for a
while, so that a source that is down costs one attempt and not one per request.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from warmpath.prefixstore.tokenizers.tokenizer import (
    FolderTokenizer,
    Tokenizer,
    TokenizerUnavailableError,
)
from warmpath.prefixstore.tokenizers.trial import try_tokenizer
from warmpath.prefixstore.workers import in_own_thread


class TokenizerSource(Protocol):
    """Loads one tokenizer, any number of times."""

    @property
    def name(self) -> str:
        """The source's name in messages."""

    def load(self) -> Tokenizer:
        """Load the tokenizer; blocks. Raises TokenizerUnavailableError with the reason."""


class FolderSource:
    """A local folder with tokenizer.json."""

    def __init__(self, folder: Path) -> None:
        self.name = f"the folder {folder}"
        self._folder = folder

    def load(self) -> FolderTokenizer:
        """Load the folder, after a trial load in another process succeeded."""
        try_tokenizer(self._folder)
        return FolderTokenizer(self._folder)


_CLOSED = "the tokenizer cache is closed"


@dataclass(slots=True)
class CacheStats:
    """Counters of a cache, which the router exports as metrics."""

    loads: int = 0
    failures: int = 0
    evictions: int = 0


@dataclass(frozen=True, slots=True)
class _Failure:
    reason: str
    until: float
    """Time of the cache's clock from which the load is tried again."""


class TokenizerCache:
    """Tokenizers by id. Use from one event loop; `close` it at the end.

    The cache keeps at most `most` tokenizers; it drops the least recently used and loads it again on
    demand. It remembers a failure for `retry_after` seconds of `clock`.
    """

    def __init__(self, *, most: int, retry_after: float, clock: Callable[[], float]) -> None:
        self.stats = CacheStats()
        self._most = most
        self.retry_after = retry_after
        self._clock = clock
        self._sources: dict[str, TokenizerSource] = {}
        self._loaded: OrderedDict[str, Tokenizer] = OrderedDict()
        self._vocab_sizes: dict[str, int] = {}
        self._failures: dict[str, _Failure] = {}
        self._loading: dict[str, asyncio.Task[Tokenizer]] = {}
        self._closed = False

    def register(self, tokenizer_id: str, source: TokenizerSource) -> None:
        """Register a tokenizer without loading it. Raises ValueError if the id is taken."""
        if tokenizer_id in self._sources:
            raise ValueError(f"two tokenizers have the id {tokenizer_id!r}")
        self._sources[tokenizer_id] = source

    async def get(self, tokenizer_id: str) -> Tokenizer:
        """Return a tokenizer; load it if the cache does not have it.

        Raises TokenizerUnavailableError, at once after a recent failure, and KeyError for an unknown
        id. A tokenizer that is loaded is returned without yielding to the event loop.
        """
        if (found := self.held(tokenizer_id)) is not None:
            return found
        source = self._sources[tokenizer_id]
        if self._closed:
            raise TokenizerUnavailableError(f"{source.name}: {_CLOSED}")
        failure = self._failures.get(tokenizer_id)
        if failure is not None:
            if self._clock() < failure.until:
                raise TokenizerUnavailableError(failure.reason)
            del self._failures[tokenizer_id]
        load = self._loading.get(tokenizer_id)
        if load is None:
            load = asyncio.create_task(self._load(tokenizer_id, source))
            # Retrieves the exception, which nobody else does if all callers have left.
            load.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
            self._loading[tokenizer_id] = load
        # `wait`, since a caller's cancellation would cancel a load that it awaits.
        await asyncio.wait((load,))
        if load.cancelled():
            raise TokenizerUnavailableError(f"{source.name}: {_CLOSED}")
        return load.result()

    def held(self, tokenizer_id: str) -> Tokenizer | None:
        """Return a tokenizer that is loaded, else None."""
        found = self._loaded.get(tokenizer_id)
        if found is not None:
            self._loaded.move_to_end(tokenizer_id)
        return found

    async def _load(self, tokenizer_id: str, source: TokenizerSource) -> Tokenizer:
        self.stats.loads += 1
        try:
            tokenizer = await asyncio.wrap_future(in_own_thread(source.load, "load"))
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # a panic in Rust is not an Exception
            self.stats.failures += 1
            reason = str(error)
            if not isinstance(error, TokenizerUnavailableError):
                reason = f"{source.name}: {type(error).__name__}: {error}"
            self._failures[tokenizer_id] = _Failure(reason, self._clock() + self.retry_after)
            raise TokenizerUnavailableError(reason) from error
        else:
            self._keep(tokenizer_id, tokenizer)
            return tokenizer
        finally:
            del self._loading[tokenizer_id]

    def _keep(self, tokenizer_id: str, tokenizer: Tokenizer) -> None:
        self._loaded[tokenizer_id] = tokenizer
        self._vocab_sizes[tokenizer_id] = tokenizer.vocab_size
        if len(self._loaded) > self._most:
            self._loaded.popitem(last=False)
            self.stats.evictions += 1

    def vocab_size(self, tokenizer_id: str) -> int:
        """Return a vocabulary's size, 0 before the first load; it outlives the tokenizer."""
        return self._vocab_sizes.get(tokenizer_id, 0)

    def failures(self) -> dict[str, str]:
        """Return the reasons of failed last loads, by tokenizer id."""
        return {tokenizer_id: failure.reason for tokenizer_id, failure in self._failures.items()}

    def lacking(self) -> dict[str, str]:
        """Return why a tokenizer was never loaded, or why its last load failed, by tokenizer id."""
        return {
            tokenizer_id: failure.reason if failure else "it is not loaded yet"
            for tokenizer_id in self._sources
            if (failure := self._failures.get(tokenizer_id)) is not None
            or tokenizer_id not in self._vocab_sizes
        }

    @property
    def registered(self) -> int:
        """The number of tokenizers, loaded or not."""
        return len(self._sources)

    def loaded(self) -> list[str]:
        """Return the ids of the loaded tokenizers, least recently used first."""
        return list(self._loaded)

    async def close(self) -> None:
        """Refuse new loads; fail the callers of those that run, without waiting for their threads."""
        self._closed = True
        loads = list(self._loading.values())
        for load in loads:
            load.cancel()
        if loads:
            await asyncio.wait(loads)
        self._loaded.clear()
