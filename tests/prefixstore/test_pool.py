"""The pool: exact, shared, bounded, and never waiting longer than it is told."""

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest

from prefixstore.lru import LruStore
from prefixstore.pool import PoolClosedError, PoolFullError, TokenizerPool
from prefixstore.tokenizer import ByteTokenizer, InvalidTextError

BYTES = ByteTokenizer()
LONG = "some words of a long prompt " * 200


class Gated(ByteTokenizer):
    """A tokenizer that waits for leave, counts its calls, and can fail."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.calls = 0
        self.error: Exception | None = None

    def encode(self, pieces: list[str]) -> list[bytes]:
        self.calls += 1
        assert self.gate.wait(30)
        if self.error:
            raise self.error
        return super().encode(pieces)


@pytest.fixture
async def gated() -> Gated:
    return Gated()


@pytest.fixture
async def pool(gated: Gated) -> AsyncIterator[TokenizerPool]:
    pool = TokenizerPool(LruStore(1 << 20), workers=2, max_prompts=2, max_bytes=20_000)
    yield pool
    gated.gate.set()
    await pool.close()


def whole(text: str) -> bytes:
    tokenizer = ByteTokenizer()
    return tokenizer.prefix + b"".join(tokenizer.encode([text]))


@pytest.mark.parametrize("text", ["", "a", "short text", LONG])
async def test_tokens_are_the_whole_texts_now_and_from_the_store(
    pool: TokenizerPool, text: str
) -> None:
    for stored in (0, len(text)):
        tokens = await pool.encode("bytes", BYTES, text, add_special_tokens=True, timeout=None)
        assert tokens.ids == whole(text)
        assert tokens.covered_chars == len(text)
        assert tokens.stored_chars == stored


async def test_only_what_is_new_of_a_grown_prompt_is_tokenised(pool: TokenizerPool) -> None:
    await pool.encode("bytes", BYTES, LONG, add_special_tokens=True, timeout=None)
    before = pool.stats.encoded_chars
    grown = await pool.encode("bytes", BYTES, LONG + "more", add_special_tokens=True, timeout=None)
    assert grown.ids == whole(LONG + "more")
    assert pool.stats.encoded_chars - before < 600


async def test_the_same_text_asked_for_twice_is_tokenised_once(
    pool: TokenizerPool, gated: Gated
) -> None:
    asked = [
        asyncio.create_task(
            pool.encode("gated", gated, LONG, add_special_tokens=False, timeout=None)
        )
        for _ in range(5)
    ]
    while not gated.calls:
        await asyncio.sleep(0)
    gated.gate.set()
    first, *others = await asyncio.gather(*asked)
    assert all(other.ids == first.ids for other in others)
    assert gated.calls == 1


async def test_a_callers_time_ends_its_wait_and_not_the_work(
    pool: TokenizerPool, gated: Gated
) -> None:
    early = await pool.encode("gated", gated, LONG, add_special_tokens=True, timeout=0)
    assert early.covered_chars == 0
    assert early.ids == gated.prefix
    gated.gate.set()
    late = await pool.encode("gated", gated, LONG, add_special_tokens=True, timeout=None)
    assert late.ids == whole(LONG)
    assert gated.calls == 1
    assert pool.stats.timeouts == 1


async def test_a_caller_that_goes_away_does_not_end_the_work_for_others(
    pool: TokenizerPool, gated: Gated
) -> None:
    leaving = asyncio.create_task(
        pool.encode("gated", gated, LONG, add_special_tokens=True, timeout=None)
    )
    staying = asyncio.create_task(
        pool.encode("gated", gated, LONG, add_special_tokens=True, timeout=None)
    )
    while not gated.calls:
        await asyncio.sleep(0)
    leaving.cancel()
    gated.gate.set()
    assert (await staying).ids == whole(LONG)
    assert leaving.cancelled()


async def test_more_than_may_wait_is_refused_with_the_limits(
    pool: TokenizerPool, gated: Gated
) -> None:
    for letter in "ab":
        await pool.encode("gated", gated, letter + LONG, add_special_tokens=True, timeout=0)
    with pytest.raises(PoolFullError, match=r"limits\.max-queued-prompts is 2"):
        await pool.encode("gated", gated, "c" + LONG, add_special_tokens=True, timeout=0)
    assert pool.stats.refused == 1
    gated.gate.set()
    again = await pool.encode("gated", gated, "a" + LONG, add_special_tokens=True, timeout=None)
    assert again.ids == whole("a" + LONG)


async def test_a_tokenizer_that_fails_fails_its_callers_and_nothing_else(
    pool: TokenizerPool, gated: Gated
) -> None:
    gated.error = RuntimeError("broken")
    gated.gate.set()
    with pytest.raises(RuntimeError, match="broken"):
        await pool.encode("gated", gated, LONG, add_special_tokens=True, timeout=None)
    assert pool.stats.waiting_prompts == 0
    assert pool.stats.waiting_bytes == 0
    gated.error = None
    tokens = await pool.encode("gated", gated, LONG, add_special_tokens=True, timeout=None)
    assert tokens.ids == whole(LONG)


async def test_a_lone_surrogate_is_named_with_its_place(pool: TokenizerPool) -> None:
    with pytest.raises(InvalidTextError, match="surrogate at character 3"):
        await pool.encode("bytes", BYTES, "abc\ud800", add_special_tokens=True, timeout=None)


async def test_a_closed_pool_takes_nothing() -> None:
    pool = TokenizerPool(LruStore(1 << 20), workers=1, max_prompts=1, max_bytes=1)
    await pool.close()
    with pytest.raises(PoolClosedError):
        await pool.encode("bytes", BYTES, "a", add_special_tokens=True, timeout=None)
