"""A bounded cache of loaded tokenizers; concurrent callers share one load.

Each load runs in its own thread and goes on when its callers leave. A failed load is remembered for a
while, so that a source that is down costs one attempt and not one per request.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from warmpath.prefixstore.tokenizers.tokenizer import Tokenizer, TokenizerUnavailableError
from warmpath.prefixstore.workers import in_own_thread


@dataclass(frozen=True, slots=True)
class TokenizerSource:
    """Loads one tokenizer, any number of times."""

    name: str
    """The source's name in messages."""
    load: Callable[[], Tokenizer]
    """Loads the tokenizer; blocks. Raises TokenizerUnavailableError with the reason."""
    is_needed: bool = True
    """Whether it was configured, so that texts are expected; False: it is loaded for the first text."""


_CLOSED = "the tokenizer cache is closed"


@dataclass(eq=False, slots=True)
class _Known:
    """What the cache knows of a tokenizer, loaded or not."""

    source: TokenizerSource
    vocab_size: int | None = None
    """The vocabulary's size; None before the first load."""
    failure: str = ""
    """Why the last load failed; empty if it did not."""
    until: float = 0.0
    """Time of the cache's clock from which the load is tried again."""
    load: "asyncio.Task[Tokenizer] | None" = None
    """The load under way."""


class TokenizerCache:
    """Tokenizers by id. Use from one event loop; `close` it at the end.

    The cache keeps at most `most` tokenizers; it drops the least recently used and loads it again on
    demand. A needed one that failed to load is not tried again for `retry_after` seconds of `clock`.
    """

    def __init__(self, *, most: int, retry_after: float, clock: Callable[[], float]) -> None:
        self.loads = 0
        self.load_failures = 0
        self.evictions = 0
        self._most = most
        self.retry_after = retry_after
        self._clock = clock
        self._known: dict[str, _Known] = {}
        self._loaded: OrderedDict[str, Tokenizer] = OrderedDict()
        self._closed = False

    def register(self, tokenizer_id: str, source: TokenizerSource) -> None:
        """Register a tokenizer without loading it. Raises ValueError if the id is taken."""
        if tokenizer_id in self._known:
            raise ValueError(f"two tokenizers have the id {tokenizer_id!r}")
        self._known[tokenizer_id] = _Known(source)

    async def get(self, tokenizer_id: str) -> Tokenizer:
        """Return a tokenizer; load it if the cache does not have it.

        Raises TokenizerUnavailableError, at once after a recent failure, and KeyError for an unknown
        id. A tokenizer that is loaded is returned without yielding to the event loop.
        """
        if (found := self.held(tokenizer_id)) is not None:
            return found
        known = self._known[tokenizer_id]
        if self._closed:
            raise TokenizerUnavailableError(f"{known.source.name}: {_CLOSED}")
        if known.failure and self._clock() < known.until:
            raise TokenizerUnavailableError(known.failure)
        known.failure = ""
        if known.load is None:
            known.load = asyncio.create_task(self._load(tokenizer_id, known))
            # Retrieves the exception, which nobody else does if all callers have left.
            known.load.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        load = known.load
        # `wait`, since a caller's cancellation would cancel a load that it awaits.
        await asyncio.wait((load,))
        if load.cancelled():
            raise TokenizerUnavailableError(f"{known.source.name}: {_CLOSED}")
        return load.result()

    def held(self, tokenizer_id: str) -> Tokenizer | None:
        found = self._loaded.get(tokenizer_id)
        if found is not None:
            self._loaded.move_to_end(tokenizer_id)
        return found

    async def _load(self, tokenizer_id: str, known: _Known) -> Tokenizer:
        self.loads += 1
        try:
            tokenizer = await asyncio.wrap_future(in_own_thread(known.source.load, "load"))
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # a panic in Rust is not an Exception
            self.load_failures += 1
            # An engine that was away for the first text may be there for the next one.
            wait = self.retry_after if known.source.is_needed else 0.0
            known.failure, known.until = str(error), self._clock() + wait
            if not isinstance(error, TokenizerUnavailableError):
                known.failure = f"{known.source.name}: {type(error).__name__}: {error}"
            raise TokenizerUnavailableError(known.failure) from error
        finally:
            known.load = None
        known.vocab_size = tokenizer.vocab_size
        self._loaded[tokenizer_id] = tokenizer
        if len(self._loaded) > self._most:
            self._loaded.popitem(last=False)
            self.evictions += 1
        return tokenizer

    def vocab_size(self, tokenizer_id: str) -> int:
        """Return a vocabulary's size, 0 before the first load; it stays if the tokenizer is dropped."""
        known = self._known.get(tokenizer_id)
        return known.vocab_size or 0 if known else 0

    def is_needed(self, tokenizer_id: str) -> bool:
        """Return whether a tokenizer was configured (`TokenizerSource.is_needed`)."""
        return self._known[tokenizer_id].source.is_needed

    def failures(self) -> dict[str, str]:
        """Return why the last load failed, by the id of each needed tokenizer whose last load did."""
        return {
            name: known.failure
            for name, known in self._known.items()
            if known.failure and known.source.is_needed
        }

    def lacking(self) -> dict[str, str]:
        """Return, by id, why a needed tokenizer is missing: not loaded yet, or its last load's error."""
        return {
            name: known.failure or "it is not loaded yet"
            for name, known in self._known.items()
            if known.source.is_needed and (known.failure or known.vocab_size is None)
        }

    @property
    def registered(self) -> int:
        """The number of needed tokenizers, loaded or not."""
        return sum(known.source.is_needed for known in self._known.values())

    def loaded(self) -> list[str]:
        """Return the ids of the loaded tokenizers, least recently used first."""
        return list(self._loaded)

    async def close(self) -> None:
        """Refuse new loads, and fail the callers of running ones, without waiting for their threads."""
        self._closed = True
        loads = [known.load for known in self._known.values() if known.load]
        for load in loads:
            load.cancel()
        if loads:
            await asyncio.wait(loads)
        self._loaded.clear()
