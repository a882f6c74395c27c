"""The pool: exact, shared, bounded, and never waiting beyond the caller's timeout."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import pytest

from tests.prefixstore.byte_tokenizer import ByteTokenizer
from tests.recordings import TOKENIZER
from warmpath.prefixstore.cuts.proof import CUT_BYTES, SLICE
from warmpath.prefixstore.pool import LONG_BYTES, KeyMemo, TokenizerPool, Tokens
from warmpath.prefixstore.rechecks import PAUSE_SECONDS
from warmpath.prefixstore.store import LruStore
from warmpath.prefixstore.tokenizers.fast_encoder import FastEncoder
from warmpath.prefixstore.tokenizers.tokenizer import (
    AT_ONCE_BYTES,
    FolderTokenizer,
    InvalidTextError,
    Tokenizer,
    TokenizerUnavailableError,
)
from warmpath.prefixstore.workers import ClosedError, FullError, Workers

BYTES = ByteTokenizer()
LONG = "some words of a long prompt " * 200


class Gated(ByteTokenizer):
    """A tokenizer that waits for leave, counts its calls, and can fail."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.calls = 0
        self.error: BaseException | None = None

    def encode(self, parts: Sequence[bytes], *, at_start: bool) -> list[bytes]:
        self.calls += 1
        assert self.gate.wait(30)
        if self.error:
            raise self.error
        return super().encode(parts, at_start=at_start)


def new_pool(hang_seconds: float = 60, workers: int = 2) -> TokenizerPool:
    return TokenizerPool(
        lambda: LruStore(1 << 20, 1),
        Workers(workers, hang_seconds=hang_seconds, most_lost=1),
        max_prompts=2,
        max_bytes=20_000,
    )


@pytest.fixture
def gated() -> Gated:
    return Gated()


@pytest.fixture
async def pool(gated: Gated) -> AsyncIterator[TokenizerPool]:
    pool = new_pool()
    yield pool
    gated.gate.set()
    await pool.close()


async def encode(
    pool: TokenizerPool,
    tokenizer: Tokenizer,
    text: str,
    *,
    special: bool = True,
    timeout: float | None = None,
) -> Tokens:
    name = type(tokenizer).__name__
    return await pool.encode(name, tokenizer, text, add_special_tokens=special, timeout=timeout)


def memo(tokens: Tokens) -> KeyMemo:
    assert tokens.memo is not None
    return tokens.memo


def whole(text: str) -> bytes:
    return BYTES.prefix + BYTES.encode([text.encode()], at_start=True)[0]


@pytest.mark.parametrize("text", ["", "a", "short text", LONG])
async def test_tokens_are_the_whole_texts_now_and_from_the_store(
    pool: TokenizerPool, text: str
) -> None:
    for stored in (0, len(text)):
        tokens = await encode(pool, BYTES, text)
        assert tokens.ids == whole(text)
        assert tokens.covered_chars == len(text)
        assert tokens.stored_chars == stored


async def test_only_what_is_new_of_a_grown_prompt_is_tokenised(pool: TokenizerPool) -> None:
    await encode(pool, BYTES, LONG)
    before = pool.encoded_bytes
    grown = await encode(pool, BYTES, LONG + "more")
    assert grown.ids == whole(LONG + "more")
    assert pool.encoded_bytes - before < 600


async def test_the_same_text_asked_for_twice_is_tokenised_once(
    pool: TokenizerPool, gated: Gated
) -> None:
    asked = [asyncio.create_task(encode(pool, gated, LONG, special=False)) for _ in range(5)]
    while not gated.calls:
        await asyncio.sleep(0)
    gated.gate.set()
    first, *others = await asyncio.gather(*asked)
    assert all(other.ids == first.ids for other in others)
    assert gated.calls == 1


async def test_a_callers_time_ends_its_wait_and_not_the_work(
    pool: TokenizerPool, gated: Gated
) -> None:
    early = await encode(pool, gated, LONG, timeout=0)
    assert early.covered_chars == 0
    assert early.ids == gated.prefix
    gated.gate.set()
    late = await encode(pool, gated, LONG)
    assert late.ids == whole(LONG)
    assert gated.calls == 1
    assert pool.timeouts == 1


async def test_a_caller_that_goes_away_does_not_end_the_work_for_others(
    pool: TokenizerPool, gated: Gated
) -> None:
    leaving = asyncio.create_task(encode(pool, gated, LONG))
    staying = asyncio.create_task(encode(pool, gated, LONG))
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
        await encode(pool, gated, letter + LONG, timeout=0)
    with pytest.raises(FullError, match="at most 2 may, and"):
        await encode(pool, gated, "c" + LONG, timeout=0)
    assert pool.waiting.refused == 1
    gated.gate.set()
    again = await encode(pool, gated, "a" + LONG)
    assert again.ids == whole("a" + LONG)


async def test_a_lone_surrogate_is_named_with_its_place(pool: TokenizerPool) -> None:
    with pytest.raises(InvalidTextError, match="surrogate at character 3"):
        await encode(pool, BYTES, "abc\ud800")


async def test_two_tokenizers_never_share_even_if_they_have_one_name(
    pool: TokenizerPool, gated: Gated
) -> None:
    gated.gate.set()
    for tokenizer in (BYTES, gated, ByteTokenizer()):
        assert (await encode(pool, tokenizer, LONG)).stored_chars == 0


class Crash(BaseException):
    """What a panic in Rust is raised as: no Exception."""


@pytest.mark.parametrize("text", [LONG, "short"])
@pytest.mark.parametrize(
    ("error", "message"),
    [
        (RuntimeError("broken"), "fails on this text: RuntimeError: broken"),
        (Crash(), "crashed: Crash"),
    ],
)
async def test_a_tokenizer_that_fails_or_crashes_fails_its_callers_and_nothing_else(
    gated: Gated, error: BaseException, message: str, text: str
) -> None:
    pool = new_pool(workers=1)
    gated.gate.set()
    gated.error = error
    with pytest.raises(TokenizerUnavailableError, match=message):
        await encode(pool, gated, text)
    assert (pool.failed, pool.waiting.count, pool.waiting.bytes) == (1, 0, 0)
    gated.error = None
    assert (await encode(pool, gated, text)).ids == whole(text)
    await pool.close()


async def test_a_pool_ends_whatever_its_threads_do_and_takes_nothing_then(gated: Gated) -> None:
    pool = new_pool(hang_seconds=600, workers=1)
    waiting = [asyncio.create_task(encode(pool, gated, name + LONG)) for name in "ab"]
    while not gated.calls:
        await asyncio.sleep(0)
    await pool.close()
    for refused in (*waiting, encode(pool, BYTES, "a")):
        with pytest.raises(ClosedError):
            await refused
    gated.gate.set()


async def test_what_waits_for_the_last_thread_is_told_when_it_is_lost(gated: Gated) -> None:
    pool = new_pool(hang_seconds=0.01, workers=1)
    asked = [encode(pool, gated, "a" + LONG), encode(pool, gated, "b" + LONG)]
    for found in await asyncio.gather(*asked, return_exceptions=True):
        assert isinstance(found, TokenizerUnavailableError)
    assert pool.waiting.count == 0
    gated.gate.set()


async def test_a_worker_that_hangs_is_replaced_and_comes_back_when_it_is_done(gated: Gated) -> None:
    pool = new_pool(hang_seconds=0.01, workers=1)
    with pytest.raises(TokenizerUnavailableError, match=r"longer than 0\.01 s"):
        await encode(pool, gated, LONG)
    assert pool.workers.lost == 1
    assert (await encode(pool, BYTES, LONG)).ids == whole(LONG)
    gated.gate.set()
    while pool.workers.lost:
        await asyncio.sleep(0)
    assert (await encode(pool, BYTES, "other " + LONG)).ids == whole("other " + LONG)
    await pool.close()


async def test_so_many_lost_workers_are_not_replaced_any_more_and_short_texts_still_served(
    gated: Gated,
) -> None:
    pool = new_pool(hang_seconds=0.01, workers=1)
    for letter in "ab":
        with pytest.raises(TokenizerUnavailableError, match="longer"):
            await encode(pool, gated, letter + LONG)
    with pytest.raises(TokenizerUnavailableError, match="2 were given up"):
        await encode(pool, BYTES, LONG)
    assert (await encode(pool, BYTES, "short")).ids == whole("short")
    gated.gate.set()
    while pool.workers.lost:
        await asyncio.sleep(0)
    assert (await encode(pool, BYTES, LONG)).ids == whole(LONG)
    await pool.close()


async def test_block_keys_are_kept_with_the_text_and_found_with_its_beginning(
    pool: TokenizerPool,
) -> None:
    first = await encode(pool, BYTES, LONG)
    assert memo(first).keys(7) == b""
    keys = bytes(range(256)) * 8 * 2
    blocks = (len(LONG) + 1) // 16
    memo(first).keep(7, 16, keys[: 8 * blocks])
    again = await encode(pool, BYTES, LONG)
    assert memo(again).keys(7) == keys[: 8 * blocks]
    assert memo(again).keys(8) == b""
    grown = await encode(pool, BYTES, LONG + "more")
    found = memo(grown).keys(7)
    assert found == keys[: len(found)]
    assert blocks - len(found) // 8 <= SLICE // 16 + 1
    memo(grown).keep(7, 16, keys[: 8 * (blocks - 1)])
    assert memo(await encode(pool, BYTES, LONG + "more")).keys(7).startswith(found)


async def test_keys_after_a_begin_token_are_not_those_without_it(pool: TokenizerPool) -> None:
    tokens = await encode(pool, BYTES, LONG)
    memo(tokens).keep(7, 16, bytes(8 * (len(LONG) // 16)))
    assert memo(await encode(pool, BYTES, LONG)).keys(7)
    assert not memo(await encode(pool, BYTES, LONG, special=False)).keys(7)


class Seamless(ByteTokenizer):
    """A tokenizer that finds no cut, and keeps how far it was let look."""

    def __init__(self) -> None:
        self.farthest = 0

    def cut(self, raw: bytes, begin: int, end: int) -> int:  # noqa: ARG002
        self.farthest = max(self.farthest, end - begin)
        return begin


async def test_a_text_without_cuts_is_looked_through_once(pool: TokenizerPool) -> None:
    seamless = Seamless()
    assert (await encode(pool, seamless, LONG)).ids == whole(LONG)
    assert SLICE <= seamless.farthest <= SLICE + CUT_BYTES


@pytest.mark.parametrize("lone", [SLICE - 1, SLICE, SLICE + 1, 3 * SLICE, 3 * SLICE + 2])
async def test_a_cut_that_lies_across_the_end_of_a_slice_is_found_with_the_next(
    pool: TokenizerPool, lone: int, tmp_path: Path
) -> None:
    definition = TOKENIZER.read_text(encoding="utf-8")
    (tmp_path / "tokenizer.json").write_text(definition, encoding="utf-8")
    tokenizer = FolderTokenizer(tmp_path)
    tokenizer.stay_slow("texts of this length then go by the store")
    text = "x" * lone + "，" + "1" * 3 * SLICE
    await encode(pool, tokenizer, text)
    known = await encode(pool, tokenizer, text + "2")
    assert known.stored_chars == lone
    assert (
        known.ids == tokenizer.prefix + tokenizer.encode([(text + "2").encode()], at_start=True)[0]
    )


async def test_others_have_their_turn_between_the_steps_of_a_long_texts_look_up() -> None:
    workers = Workers(1, hang_seconds=60, most_lost=1)
    pool = TokenizerPool(
        lambda: LruStore(1 << 26, 1), workers, max_prompts=1, max_bytes=2 * LONG_BYTES
    )
    text = "a" * (LONG_BYTES + 1)
    first = await pool.encode("bytes", BYTES, text, add_special_tokens=False, timeout=None)
    again = pool.encode("bytes", BYTES, text, add_special_tokens=False, timeout=None)
    for _ in range(3):
        assert again.send(None) is None
    with pytest.raises(StopIteration) as ended:
        again.send(None)
    assert ended.value.value.ids == first.ids
    assert ended.value.value.stored_chars == len(text)
    await pool.close()


class Wrong(FastEncoder):
    """An encoder that is wrong about the last id of some texts."""

    def __init__(self, encoder: FastEncoder, about: str) -> None:
        self._right, self._about = encoder, about

    def encode(self, texts: Sequence[str]) -> list[bytes]:
        found = self._right.encode(texts)
        return [
            ids[:-4] + bytes(4) if self._about in text else ids
            for text, ids in zip(texts, found, strict=True)
        ]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    definition = TOKENIZER.read_text(encoding="utf-8")
    (tmp_path / "tokenizer.json").write_text(definition, encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("length", [200, 3 * AT_ONCE_BYTES])
async def test_a_live_text_with_wrong_ids_ends_the_faster_encoder_for_its_model(
    folder: Path, length: int, caplog: pytest.LogCaptureFixture
) -> None:
    now = [0.0]
    workers = Workers(1, hang_seconds=60, most_lost=0)
    pool = TokenizerPool(
        lambda: LruStore(1 << 20, 1),
        workers,
        max_prompts=2,
        max_bytes=1 << 20,
        clock=lambda: now[0],
    )
    right, tokenizer = FolderTokenizer(folder), FolderTokenizer(folder)
    assert right.fast is not None
    tokenizer.fast = Wrong(right.fast, "secret")
    harmless, text = "some words " * (length // 11), "some words " * (length // 11) + "a secret"
    expected = right.encode([text.encode()], at_start=True)[0]

    async def found() -> bytes:
        tokens = await pool.encode("m", tokenizer, text, add_special_tokens=False, timeout=None)
        return tokens.ids

    await pool.encode("m", tokenizer, harmless, add_special_tokens=False, timeout=None)
    await until(lambda: pool.rechecks.made == 1)
    assert await found() != expected  # the next comparison is not due yet
    now[0] += PAUSE_SECONDS
    assert await found() != expected
    await until(lambda: pool.rechecks.made == 2)
    assert [*pool.rechecks.disagreements] == ["m"]
    assert await found() == expected
    assert not tokenizer.at_once_bytes
    assert "model 'm': fastokens and tokenizers disagree" in caplog.text
    assert "secret" not in caplog.text
    tokenizer = FolderTokenizer(folder)  # the cache dropped it, say, and it was loaded again
    assert await found() == expected
    assert tokenizer.fast is None
    await pool.close()


async def test_a_definition_on_whose_probe_the_encoders_differ_is_encoded_by_the_reference(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = FolderTokenizer(folder).encode([b"some words"], at_start=True)[0]
    encode = FastEncoder.encode
    monkeypatch.setattr(
        FastEncoder, "encode", lambda self, texts: [ids[4:] for ids in encode(self, texts)]
    )
    tokenizer = FolderTokenizer(folder)
    assert (tokenizer.fast, tokenizer.at_once_bytes) == (None, 0)
    pool = new_pool()
    text = "some words"
    tokens = await pool.encode("m", tokenizer, text, add_special_tokens=False, timeout=None)
    assert tokens.ids == expected
    assert "other ids for text 0 of the probe" in pool.rechecks.disagreements["m"]
    await pool.close()


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0)
