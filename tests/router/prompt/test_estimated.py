"""A prompt that cannot be tokenised is read by its length where a pick asks, and refused elsewhere."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fake_engine import FakeEngine
from tests.fake_http import Answer
from warmpath.prefixstore.pool import Tokens
from warmpath.prefixstore.workers import ClosedError
from warmpath.proto.errors import Reason
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.router.calls.failures import FAILURES
from warmpath.router.config.files import engine_credentials
from warmpath.router.config.read import parse
from warmpath.router.prompt import tokenizer_sources
from warmpath.router.prompt.limits import BadRequestError, PromptLimits
from warmpath.router.prompt.models import Model, ModelTable
from warmpath.router.prompt.reader import UNREAD, PromptReader
from warmpath.router.prompt.texts import Texts, texts
from warmpath.router.prompt.token_prompt import TokenPrompt
from warmpath.router.prompt.truncate import CHARS_PER_TOKEN

LIMITS = PromptLimits(max_prompt_bytes=1 << 20, max_prompt_tokens=1 << 20)
OF_TOKENIZERS = {
    Reason.NO_TOKENIZER, Reason.TOKENIZER_UNAVAILABLE, Reason.TOKENIZER_FULL, Reason.RENDER_TIMEOUT,
}  # fmt: skip


@asynccontextmanager
async def reading(folder: Path, tokenizer: str = "") -> AsyncIterator[tuple[PromptReader, Texts]]:
    tokenizer = tokenizer or f'tokenizer = "{folder}"'
    config = parse(f'[[models]]\nname = "m"\n{tokenizer}\n', "test")
    async with texts(config, folder, engine_credentials(config.probe, folder)) as parts:
        yield PromptReader(parts, LIMITS), parts


def chat(**fields: Any) -> pb.Prompt:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi" * 100}], **fields}
    return pb.Prompt(chat_body=json.dumps(body).encode())


TEXT = pb.Prompt(model="m", text="hi" * 100)


def test_every_error_for_want_of_a_tokenizer_is_one_that_picks_go_on_after() -> None:
    of = {error for error, failure in FAILURES.items() if failure.reason in OF_TOKENIZERS}
    assert of == set(UNREAD)


async def test_with_the_pool_and_the_renderer_closed_prompts_are_read_by_their_length(
    model_folder: Path,
) -> None:
    async with reading(model_folder) as (reader, parts):
        assert not (await reader.read(chat(), 600, may_reckon=True)).unread
        await parts.pool.close()
        for prompt in (TEXT, chat()):
            found = await reader.read(prompt, 600, may_reckon=True)
            assert found.unread >= 50
            assert "closed" in found.unread_because
            with pytest.raises(ClosedError):
                await reader.read(prompt, 600)
        await parts.renderer.close()
        found = await reader.read(chat(), 600, may_reckon=True)
        assert "the renderer is closed" in found.unread_because
        with pytest.raises(ClosedError):
            await reader.read(chat(), 600)


async def test_a_prompt_that_an_engine_tokenises_has_the_bytes_by_which_it_is_read_otherwise(
    tmp_path: Path, model_folder: Path, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenizer_sources, "LAST_SECONDS", 30.0)
    tool = {"type": "function", "function": {"name": "f"}}
    prompts = TEXT, chat(), chat(tools=[tool], chat_template_kwargs={"a": 1}, cache_salt="s")
    async with reading(tmp_path, f'tokenizer-urls = ["{engine.url}"]') as (reader, _):
        known = [(await reader.read(one, 600, may_reckon=True)).prompt for one in prompts]
        assert all(one.tokens > 200 for one in known)
        engine.answer = lambda _: Answer(500)
        for one, before in zip(prompts, known, strict=True):
            # Another message at the end, and so no text that is known.
            longer = (await reader.read(lengthened(one), 600, may_reckon=True)).prompt
            assert longer.is_blind
            assert before.by_bytes
            keys = before.by_bytes.chain(1, "seed").keys()
            # The last bytes close the list of messages.
            assert len(keys) > 48
            assert longer.chain(1, "seed").keys()[: len(keys) - 2] == keys[:-2]
    async with reading(model_folder) as (reader, _):
        for one in (*prompts, pb.Prompt(model="m", token_ids=pb.TokenIds(ids=[1, 2]))):
            assert (await reader.read(one, 600, may_reckon=True)).prompt.by_bytes is None


def lengthened(prompt: pb.Prompt) -> pb.Prompt:
    if prompt.text:
        return pb.Prompt(model="m", text=prompt.text + " and on")
    body = json.loads(prompt.chat_body)
    return pb.Prompt(chat_body=json.dumps(body | {"messages": body["messages"] * 2}).encode())


@given(
    kind=st.sampled_from(sorted(UNREAD, key=lambda kind: kind.__name__)),
    content=st.text(min_size=1, max_size=200),
    said=st.text(min_size=1, max_size=50),
)
async def test_whatever_ails_a_tokenizer_bytes_of_the_text_stand_in(
    kind: type[Exception], content: str, said: str
) -> None:
    error = kind("prompt.text", said) if issubclass(kind, BadRequestError) else kind(said)

    class Ailing:
        def held(self, _: str) -> object:
            return object()

        async def encode(self, *_: object, **__: object) -> Tokens:
            raise error

        def vocab_size(self, _: object) -> int:
            return 0

    class Parts:
        models = ModelTable()
        tokenizers = pool = Ailing()

    Parts.models.add(Model("m", tokenizer="m"), (), ())
    reader = PromptReader(Parts(), LIMITS)  # type: ignore[arg-type]
    prompt = pb.Prompt(model="m", text=content)
    found = await reader.read(prompt, 1, may_reckon=True)
    raw = content.encode()
    assert found.unread == -(-len(raw) // CHARS_PER_TOKEN)
    assert said in found.unread_because
    assert (found.prompt.is_blind, found.prompt.tokens) == (True, 0)
    longer = await reader.read(pb.Prompt(model="m", text=content + said), 1, may_reckon=True)
    keys = found.prompt.chain(1, "seed").keys()
    assert len(keys) == max(0, len(raw) // CHARS_PER_TOKEN - 1)
    assert longer.prompt.chain(1, "seed").keys()[: len(keys)] == keys
    # Tokens of the same bytes are another prompt.
    alike = TokenPrompt("m", found.prompt.ids).chain(1, "seed").keys()
    assert set(keys).isdisjoint(alike)
    with pytest.raises(kind):
        await reader.read(prompt, 1)


async def test_a_chat_however_deeply_nested_is_read_or_refused_by_its_field(
    model_folder: Path,
) -> None:
    async with reading(model_folder) as (reader, parts):
        await parts.renderer.close()
        # Python's own limit on nesting lies between, if it has one.
        for depth in range(500, 1010):
            nested = "[" * depth + "]" * depth
            prompt = pb.Prompt(
                chat_body=b'{"model": "m", "messages": [{"role": "user", "content": "hi"}], '
                b'"documents": [{"a": %s}]}' % nested.encode()
            )
            try:
                found = await reader.read(prompt, 600, may_reckon=True)
            except BadRequestError as error:
                field = error.field
            else:
                assert found.unread > depth // 2
                continue
            assert field in {"prompt.chat_body", "prompt.chat_body.messages"}
