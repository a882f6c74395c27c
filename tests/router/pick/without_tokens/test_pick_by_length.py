"""Where a prompt cannot be tokenised, whatever befalls tokenizers and renderers, picks go on by length and load, and say why."""

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from shutil import copytree
from unittest.mock import patch

import grpc.aio
import pytest

from tests.fake_engine import FakeEngine, tokenized
from tests.fake_http import Answer, Asked
from tests.router.error_details import details_of
from tests.router.pick_stand import QUIET, UNENDING, Stand, pod, standing
from warmpath.prefixstore.chats import render_worker
from warmpath.prefixstore.tokenizers.tokenizer import FolderTokenizer
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.router.prompt import texts, tokenizer_sources

TEXT = "Explain prefix caching. " * 500
TOKENS = len(TEXT) // 4
"""Estimated tokens of the text; a chat has a few more."""
PODS = UNENDING + QUIET + pod("a") + pod("b")
LOOPS = (
    "{% if messages[0].content == 'loop' %}"
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}{% endif %}"
    "{% for m in messages %}{{ m.content }}{% endfor %}"
)
PATIENT = "tokenize-seconds = 600\n"
"""However busy the machine is, no pick is by length for want of time."""


class PanicException(BaseException):
    """What a panic of native code is in Python: no Exception."""


def text(content: str = TEXT) -> pb.Prompt:
    return pb.Prompt(model="demo", text=content)


def chat(content: str = TEXT) -> pb.Prompt:
    body = {"model": "demo", "messages": [{"role": "user", "content": content}]}
    return pb.Prompt(chat_body=json.dumps(body).encode())


def completion(content: str = TEXT) -> pb.Prompt:
    body = {"model": "demo", "prompt": content}
    return pb.Prompt(completions_body=json.dumps(body).encode())


async def of_tokenizer(stand: Stand) -> list[pb.Finding]:
    """Return the findings on tokenizers: the pods here have no events, which is another one."""
    return [one for one in (await stand.diagnose()).findings if one.kind == "tokenizer"]


FORMS = pytest.mark.parametrize("form", [text, chat, completion])


async def by_length(stand: Stand, prompt: pb.Prompt, because: str, reason: str) -> None:
    """Check that a prompt is picked for by the bytes of its text, and that Score has the reason."""
    first = await stand.pick(prompt)
    assert first.prompt_tokens == first.reckoned_tokens >= TOKENS
    assert because in first.reckoned_because
    assert await stand.report(first.booking_id, "FINISHED")
    second = await stand.pick(prompt)
    warmest = max(second.candidates, key=lambda one: one.matched_tokens)
    assert TOKENS - 128 <= warmest.matched_tokens == warmest.believed_tokens
    for one in second.candidates:
        assert one.trust.level == pb.Trust.DEGRADED
        assert one.trust.reason.startswith("blind: ")
    explained = await stand.explain(prompt)
    assert explained.reason.startswith("Blind, by the bytes of its text: ")
    assert explained.reckoned_tokens == first.reckoned_tokens
    assert because in explained.reckoned_because
    assert await stand.report(second.booking_id, "FINISHED")
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await stand.stub.Score(pb.ScoreRequest(prompt=prompt), timeout=60)
    assert details_of(raised.value).reason == reason
    # The other forms are not touched by it.
    ids = await stand.pick(pb.Prompt(model="demo", token_ids=pb.TokenIds(ids=range(100))))
    assert (ids.prompt_tokens, ids.reckoned_tokens) == (100, 0)
    assert await stand.report(ids.booking_id, "FINISHED")


@FORMS
async def test_a_model_without_a_tokenizer_is_picked_for_by_length(
    form: Callable[[], pb.Prompt], tmp_path: Path
) -> None:
    async with standing(tmp_path, f"[limits]\n{PATIENT}{PODS}") as stand:
        await by_length(stand, form(), "'demo' has no tokenizer configured", "NO_TOKENIZER")
        [finding] = await of_tokenizer(stand)
        assert (finding.kind, finding.model) == ("tokenizer", "demo")
        assert "'demo' has no tokenizer configured" in finding.text


@FORMS
async def test_a_tokenizer_that_cannot_be_loaded_is_named_and_picks_go_on(
    form: Callable[[], pb.Prompt],
    tmp_path: Path,
    model_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "tokenizer.json").write_text("{broken", encoding="utf-8")
    monkeypatch.setattr(texts, "RETRY_SECONDS", 0.01)
    tables = f"[limits]\n{PATIENT}{PODS}"
    async with standing(tmp_path, tables, models='tokenizer = "."') as stand:
        [finding] = await of_tokenizer(stand)
        assert (finding.kind, finding.model, finding.pod) == ("tokenizer", "demo", "")
        assert str(tmp_path) in finding.text
        await by_length(stand, form(), str(tmp_path), "TOKENIZER_UNAVAILABLE")
        copytree(model_folder, tmp_path, dirs_exist_ok=True)
        await until_read(stand, form())
        assert not await of_tokenizer(stand)


async def test_a_chat_whose_template_cannot_be_compiled_is_picked_for_by_length(
    tmp_path: Path, model_folder: Path
) -> None:
    copytree(model_folder, tmp_path, dirs_exist_ok=True)
    (tmp_path / "chat_template.jinja").write_text("{% broken", encoding="utf-8")
    problem = "the chat template is broken: "
    async with standing(tmp_path, PODS, models='tokenizer = "."') as stand:
        await by_length(stand, chat(), problem, "NO_TOKENIZER")
        scored = stand.stub.Score(pb.ScoreRequest(prompt=chat()), timeout=30)
        code, said = await stand.refused(scored)
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert said.startswith("prompt.chat_body")
        assert problem in said
        assert not (await stand.pick(text())).reckoned_because


async def until_read(stand: Stand, prompt: pb.Prompt) -> None:
    while (await stand.pick(prompt)).reckoned_because:
        await asyncio.sleep(0.01)


def renderers() -> Iterator[int]:
    """Return the ids of the processes in which this process renders chats."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(path.read_text().rpartition(")")[2].split()[1])
            command = path.with_name("cmdline").read_bytes()
        except (OSError, IndexError):
            continue
        if parent == os.getpid() and b"render_process" in command:
            yield int(path.parent.name)


def kill_renderers() -> None:
    for process in renderers():
        os.kill(process, signal.SIGKILL)


@asynccontextmanager
async def rendering(
    folder: Path, model_folder: Path, transport: str, seconds: float = 600.0
) -> AsyncIterator[Stand]:
    """Run a router with one renderer, whose template never ends for the chat `loop`."""
    copytree(model_folder, folder, dirs_exist_ok=True)
    (folder / "chat_template.jinja").write_text(LOOPS, encoding="utf-8")
    tables = f"[limits]\n{PATIENT}[templates]\nworkers = 1\n{PODS}"
    with patch.object(texts, "RENDER_SECONDS", seconds):
        async with standing(folder, tables, models='tokenizer = "."', transport=transport) as stand:
            yield stand


async def test_a_renderer_killed_amid_a_chat_leaves_the_chat_to_its_length_and_renders_the_next(
    tmp_path: Path, model_folder: Path, transport: str
) -> None:
    async with rendering(tmp_path, model_folder, transport) as stand:
        asked = asyncio.ensure_future(stand.pick(chat("loop")))
        while not asked.done():
            kill_renderers()
            await asyncio.sleep(0.01)
        picked = await asked
        assert picked.reckoned_tokens == picked.prompt_tokens > 0
        assert "ended" in picked.reckoned_because
        await until_read(stand, chat())


async def test_a_chat_that_cannot_be_rendered_in_time_is_picked_for_by_length(
    tmp_path: Path, model_folder: Path, transport: str
) -> None:
    async with rendering(tmp_path, model_folder, transport, 0.2) as stand:
        picked = await stand.pick(chat("loop"))
        assert picked.reckoned_tokens == picked.prompt_tokens > 0
        assert "takes longer" in picked.reckoned_because


async def test_without_any_renderer_that_starts_chats_are_picked_for_by_length(
    tmp_path: Path, model_folder: Path, transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rendering(tmp_path, model_folder, transport) as stand:
        monkeypatch.setattr(render_worker, "COMMAND", ("-c", "raise SystemExit(1)"))
        kill_renderers()
        while not (await stand.pick(chat())).reckoned_because:
            await asyncio.sleep(0.01)
        await by_length(stand, chat(), "no process to render in", "TOKENIZER_UNAVAILABLE")
        assert not (await stand.pick(text())).reckoned_because


async def test_chats_beyond_those_that_may_wait_are_picked_for_by_length(
    tmp_path: Path, model_folder: Path, transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(texts, "MOST_QUEUED", 1)
    async with rendering(tmp_path, model_folder, transport) as stand:
        # One is rendered and one waits, at most.
        asked = [asyncio.ensure_future(stand.pick(chat("loop"))) for _ in range(3)]
        refused, held = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
        for one in refused:
            assert "at most 1 may, and" in one.result().reckoned_because
        for one in held:
            one.cancel()


def hang(engine: FakeEngine) -> None:
    """Let an engine answer once its gate is open."""

    def hanging(asked: Asked) -> Answer:
        assert engine.gate.wait(600)
        return tokenized(asked)

    engine.answer = hanging


@asynccontextmanager
async def tokenising(folder: Path, engine: FakeEngine, transport: str) -> AsyncIterator[Stand]:
    """Run a router that has an engine alone for its tokenizer, which is asked anew each time."""
    models = f'tokenizer-urls = ["{engine.url}"]'
    with (
        patch.object(texts, "RETRY_SECONDS", 0.001),
        patch.multiple(tokenizer_sources, SKIP_SECONDS=0.001, LAST_SECONDS=600.0),
    ):
        async with standing(
            folder, f"[limits]\n{PATIENT}{PODS}", models=models, transport=transport
        ) as stand:
            await until_read(stand, text("short"))
            yield stand


@pytest.mark.deep
@pytest.mark.parametrize("form", [text, chat])
@pytest.mark.parametrize(
    ("answer", "because"),
    [
        (Answer(500), "HTTP 500"),
        (Answer(200, b"{"), "/tokenize"),
        (Answer(200, b'{"tokens": [-1]}'), "/tokenize"),
        (Answer(200, b'{"tokens": "none"}'), "/tokenize"),
        (Answer(302, b"", {"Location": "/elsewhere"}), "HTTP 302"),
    ],
    ids=["500", "cut off", "negative", "no list", "moved"],
)
async def test_an_engine_that_tokenises_no_more_leaves_its_prompts_to_their_length(
    form: Callable[[], pb.Prompt],
    answer: Answer,
    because: str,
    tmp_path: Path,
    engine: FakeEngine,
    transport: str,
) -> None:
    async with tokenising(tmp_path, engine, transport) as stand:
        engine.answer = lambda _: answer
        await by_length(stand, form(), because, "TOKENIZER_UNAVAILABLE")
        engine.answer = tokenized
        await until_read(stand, form())


async def test_when_all_threads_of_the_pool_hang_picks_go_on_by_length_until_they_come_back(
    tmp_path: Path, engine: FakeEngine, transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(texts, "HANG_SECONDS", 0.2)
    monkeypatch.setattr(texts, "ASKING", 1)
    async with tokenising(tmp_path, engine, transport) as stand:
        hang(engine)
        try:
            while "all threads hang" not in (picked := await stand.pick(text())).reckoned_because:
                assert picked.reckoned_tokens == TOKENS
            await by_length(stand, text(), "all threads hang", "TOKENIZER_UNAVAILABLE")
        finally:
            engine.gate.set()
        await until_read(stand, text())


async def test_texts_beyond_those_that_may_wait_are_picked_for_by_length(
    tmp_path: Path, engine: FakeEngine, transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(texts, "MOST_QUEUED", 1)
    async with tokenising(tmp_path, engine, transport) as stand:
        hang(engine)
        asked = [asyncio.ensure_future(stand.pick(text(f"{TEXT}{n}"))) for n in range(2)]
        [refused], [held] = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
        assert "at most 1 may, and" in refused.result().reckoned_because
        await by_length(stand, text(), "at most 1 may, and", "TOKENIZER_FULL")
        engine.gate.set()
        assert not (await held).reckoned_because


@pytest.mark.parametrize("error", [PanicException("index out of bounds"), RuntimeError("odd")])
async def test_a_tokenizer_that_panics_leaves_texts_to_their_length(
    error: BaseException,
    tmp_path: Path,
    model_folder: Path,
    transport: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def panics(*_: object, **__: object) -> list[bytes]:
        raise error

    models = f'tokenizer = "{model_folder}"'
    async with standing(tmp_path, PODS, models=models, transport=transport) as stand:
        for name in ("encode", "encode_at_once"):
            monkeypatch.setattr(FolderTokenizer, name, panics)
        because = type(error).__name__
        await by_length(stand, text(), because, "TOKENIZER_UNAVAILABLE")
        # A short text is not handed to a thread.
        picked = await stand.pick(text("short"))
        assert because in picked.reckoned_because
        monkeypatch.undo()
        assert not (await stand.pick(text())).reckoned_because


async def test_a_callers_short_deadline_is_kept_while_the_tokenizer_is_slow(
    tmp_path: Path, engine: FakeEngine, transport: str
) -> None:
    async with tokenising(tmp_path, engine, transport) as stand:
        hang(engine)
        picked = None
        while picked is None:
            # A machine may be too busy to answer in the hundredth of a second that is left for it.
            with contextlib.suppress(grpc.aio.AioRpcError):
                picked = await stand.stub.Pick(pb.PickRequest(prompt=text()), timeout=0.2)
        assert picked.reckoned_tokens == TOKENS
        assert "in time" in picked.reckoned_because
        engine.gate.set()


async def test_a_text_with_an_endless_word_is_picked_for_by_length(
    tmp_path: Path, model_folder: Path, transport: str
) -> None:
    models = f'tokenizer = "{model_folder}"'
    tables = f"[limits]\n{PATIENT}{PODS}"
    async with standing(tmp_path, tables, models=models, transport=transport) as stand:
        await by_length(stand, text("a" * (3 << 20)), "bytes in one piece", "NO_TOKENIZER")
        assert not (await stand.pick(text())).reckoned_because
