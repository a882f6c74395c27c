"""The cache of tokenizers: bounded, each loaded once, failures remembered for a while."""

import asyncio
import threading
from collections import OrderedDict
from collections.abc import AsyncIterator

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.clock import Clock
from tests.prefixstore.byte_tokenizer import ByteTokenizer
from warmpath.prefixstore.tokenizers.cache import TokenizerCache
from warmpath.prefixstore.tokenizers.tokenizer import TokenizerUnavailableError

RETRY = 10.0
MOST = 2
IDS = ("a", "b", "c")


class Source:
    """A source that waits for leave, counts its loads, and can fail."""

    def __init__(self) -> None:
        self.name = "the test's source"
        self.is_needed = True
        self.gate = threading.Event()
        self.gate.set()
        self.loads = 0
        self.error: Exception | None = None

    def load(self) -> ByteTokenizer:
        self.loads += 1
        assert self.gate.wait(30)
        if self.error:
            raise self.error
        return ByteTokenizer()


def check(cache: TokenizerCache) -> None:
    """Assert that each tokenizer is in one state, and that no more are loaded than may be."""
    assert len(cache._loaded) <= cache._most
    for name, known in cache._known.items():
        states = name in cache._loaded, known.load is not None, bool(known.failure)
        assert sum(states) <= 1, "in two states at once"
    assert cache._loaded.keys() <= cache._known.keys()


@pytest.fixture
def sources() -> dict[str, Source]:
    return {name: Source() for name in IDS}


@pytest.fixture
async def cache(sources: dict[str, Source]) -> AsyncIterator[TokenizerCache]:
    cache = TokenizerCache(most=MOST, retry_after=RETRY, clock=Clock())
    for name, source in sources.items():
        cache.register(name, source)
    yield cache
    check(cache)
    for source in sources.values():
        source.gate.set()
    await cache.close()


async def test_one_that_is_loaded_is_returned_without_a_pause(cache: TokenizerCache) -> None:
    loaded = await cache.get("a")
    async with asyncio.timeout(0):
        assert await cache.get("a") is loaded


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (TokenizerUnavailableError("the hub is down"), "^the hub is down"),
        (MemoryError("much too large"), "the test's source: MemoryError: much"),
    ],
)
async def test_whatever_a_source_raises_is_said_as_unavailable_and_remembered(
    cache: TokenizerCache, sources: dict[str, Source], error: Exception, message: str
) -> None:
    sources["a"].error = error
    for _ in range(2):
        with pytest.raises(TokenizerUnavailableError, match=message):
            await cache.get("a")
    assert sources["a"].loads == 1


async def test_closing_waits_for_no_load_and_tells_its_callers(
    cache: TokenizerCache, sources: dict[str, Source]
) -> None:
    sources["a"].gate.clear()
    asked = asyncio.create_task(cache.get("a"))
    while not sources["a"].loads:
        await asyncio.sleep(0)
    await cache.close()
    for waiting in (asked, cache.get("b")):
        with pytest.raises(TokenizerUnavailableError, match="closed"):
            await waiting


async def test_an_id_is_registered_once(cache: TokenizerCache, sources: dict[str, Source]) -> None:
    with pytest.raises(ValueError, match="'a'"):
        cache.register("a", sources["a"])
    with pytest.raises(KeyError):
        await cache.get("nobody")


class CacheMachine(RuleBasedStateMachine):
    """Any order of asking, failing, mending and waiting, against the rules written out."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.clock = Clock()
        self.sources = {name: Source() for name in IDS}
        self.cache = TokenizerCache(most=MOST, retry_after=RETRY, clock=self.clock)
        for name, source in self.sources.items():
            self.cache.register(name, source)
        self.expected: OrderedDict[str, None] = OrderedDict()
        self.until: dict[str, float] = {}
        self.loads = dict.fromkeys(IDS, 0)
        self.ever: set[str] = set()
        self.evictions = 0

    @rule(name=st.sampled_from(IDS), callers=st.integers(0, 4), leaving=st.integers(1, 3))
    def ask(self, name: str, callers: int, leaving: int) -> None:
        fails = self._expect(name)
        ended = self.loop.run_until_complete(self._gather(name, callers, leaving))
        assert all(isinstance(one, TokenizerUnavailableError) is fails for one in ended)

    def _expect(self, name: str) -> bool:
        """Bring what is expected up to date with one more question; return whether it fails."""
        if name in self.expected:
            self.expected.move_to_end(name)
            return False
        if self.clock.now < self.until.get(name, 0.0):
            return True
        self.loads[name] += 1
        if self.sources[name].error:
            self.until[name] = self.clock.now + RETRY
            return True
        self.expected[name] = None
        self.ever.add(name)
        if len(self.expected) > MOST:
            self.expected.popitem(last=False)
            self.evictions += 1
        return False

    async def _gather(self, name: str, callers: int, leaving: int) -> list[object]:
        tasks = [asyncio.create_task(self.cache.get(name)) for _ in range(callers + leaving)]
        await asyncio.sleep(0)
        for task in tasks[callers:]:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        # A load goes on when all its callers have gone.
        async with asyncio.timeout(30):
            while any(known.load for known in self.cache._known.values()):
                await asyncio.sleep(0)
        return ended[:callers]

    @rule(name=st.sampled_from(IDS), broken=st.booleans())
    def break_or_mend(self, name: str, broken: bool) -> None:
        self.sources[name].error = TokenizerUnavailableError("broken") if broken else None

    @rule(seconds=st.sampled_from([1.0, RETRY / 2, RETRY]))
    def wait(self, seconds: float) -> None:
        self.clock.now += seconds

    @invariant()
    def is_as_expected(self) -> None:
        check(self.cache)
        assert self.cache.loaded() == list(self.expected)
        assert {name: source.loads for name, source in self.sources.items()} == self.loads
        assert self.cache.loads == sum(self.loads.values())
        assert self.cache.evictions == self.evictions
        for name in IDS:
            assert self.cache.vocab_size(name) == (257 if name in self.ever else 0)

    def teardown(self) -> None:
        self.loop.run_until_complete(self.cache.close())
        self.loop.close()


TestCacheMachine = CacheMachine.TestCase
