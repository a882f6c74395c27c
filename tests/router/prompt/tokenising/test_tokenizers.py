"""The router with tokenizers from anywhere: what one model lacks, no other and no token id notices."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import grpc
import grpc.aio
import huggingface_hub
import pytest

from tests.fake_engine import FakeEngine, tokenized
from tests.fake_http import Answer, Asked
from tests.fake_hub import COMMIT, REPO, FakeHub, sha256
from tests.router.running_router import running_router
from warmpath.cli import check_config
from warmpath.cli.child import Process
from warmpath.indexer.keys.key import pack_tokens
from warmpath.lab.local.cluster import Worker, WorkerSettings
from warmpath.prefixstore.tokenizers.tokenizer import FolderTokenizer
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.proto.pb.warmpath.v1 import router_pb2_grpc
from warmpath.router.prompt import texts, tokenizer_sources

TEXT = "You are a patient assistant that explains prefix caching, step by step."
CHAT = {"messages": [{"role": "user", "content": TEXT}]}
PATIENT = "[limits]\ntokenize-seconds = 30.0\n"


@pytest.fixture(autouse=True)
def patient(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait long for engines, and keep what the hub has in a folder of the test."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(tokenizer_sources, "REMOTE_SECONDS", 30.0)
    monkeypatch.setattr(tokenizer_sources, "LAST_SECONDS", 30.0)


@dataclass
class Router:
    """A running router's client."""

    stub: router_pb2_grpc.RouterStub

    async def score(self, prompt: pb.Prompt, timeout: float = 30) -> pb.ScoreResponse:
        return await self.stub.Score(pb.ScoreRequest(prompt=prompt), timeout=timeout)

    async def text(self, model: str, text: str = TEXT, timeout: float = 30) -> pb.ScoreResponse:
        return await self.score(pb.Prompt(model=model, text=text), timeout)

    async def chat(self, model: str) -> pb.ScoreResponse:
        body = json.dumps(CHAT | {"model": model}).encode()
        return await self.score(pb.Prompt(chat_body=body))

    async def ids(self, model: str, *ids: int) -> pb.ScoreResponse:
        return await self.score(pb.Prompt(model=model, token_ids_packed=pack_tokens(list(ids))))


@asynccontextmanager
async def routing(folder: Path, models: str) -> AsyncIterator[Router]:
    async with running_router(folder, models, metrics="") as (_, channel):
        yield Router(router_pb2_grpc.RouterStub(channel))


@pytest.fixture
def hub(model_folder: Path) -> Iterator[FakeHub]:
    with FakeHub({path.name: path.read_bytes() for path in model_folder.iterdir()}) as hub:
        yield hub
    huggingface_hub.close_session()


@pytest.fixture
def slow_hub(hub: FakeHub) -> FakeHub:
    """Return a hub that answers once its gate is open."""
    serve = hub.answer

    def slow(asked: Asked) -> Answer:
        assert hub.gate.wait(60)
        return serve(asked)

    hub.answer = slow
    return hub


def hub_table(hub: FakeHub, **changes: str) -> str:
    files = {name: sha256(raw) for name, raw in hub.files.items()} | changes
    named = ", ".join(f'"{name}" = "{digest}"' for name, digest in files.items())
    return (
        f'hub = {{ repo = "{REPO}", revision = "{COMMIT}", endpoint = "{hub.url}", '
        f"files = {{ {named} }} }}\n"
    )


def tokens_of(model_folder: Path, text: str = TEXT) -> int:
    """Return how many tokens a text has, special ones counted."""
    tokenizer = FolderTokenizer(model_folder)
    own = b"".join(tokenizer.encode([text.encode()], at_start=True))
    return len(tokenizer.prefix + own + tokenizer.suffix) // 4


async def test_one_broken_tokenizer_is_said_once_and_everything_else_is_served(
    tmp_path: Path,
    model_folder: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "tokenizer.json").write_text("{broken", encoding="utf-8")
    # However busy the machine is, a load that failed is not tried again within the test.
    monkeypatch.setattr(texts, "RETRY_SECONDS", 600.0)
    models = (
        '[[models]]\nname = "broken"\ntokenizer = "."\n'
        f'[[models]]\nname = "whole"\ntokenizer = "{model_folder}"\n'
    )
    async with routing(tmp_path, models) as router:
        for ask in (router.text, router.chat):
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await ask("broken")
            assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
            assert "'broken'" in str(raised.value.details())
            assert str(tmp_path) in str(raised.value.details())
        assert (await router.ids("broken", 1, 2, 3)).prompt_tokens == 3
        assert (await router.text("whole")).prompt_tokens == tokens_of(model_folder)
    errors = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert len(errors) == 1
    assert TEXT not in caplog.text


async def test_ids_are_checked_against_the_vocabulary_that_was_loaded(
    tmp_path: Path, model_folder: Path
) -> None:
    models = f'[[models]]\nname = "m"\naliases = ["alias"]\ntokenizer = "{model_folder}"\n'
    size = FolderTokenizer(model_folder).vocab_size
    async with routing(tmp_path, models) as router:
        await router.ids("alias", size - 1)
        with pytest.raises(grpc.aio.AioRpcError, match=f"holds token id {size}; "):
            await router.ids("alias", size)


async def test_a_tokenizer_of_the_hub_serves_texts_and_chats(
    tmp_path: Path, model_folder: Path, hub: FakeHub
) -> None:
    local = f'[[models]]\nname = "local"\ntokenizer = "{model_folder}"\n'
    async with routing(tmp_path, local + '[[models]]\nname = "m"\n' + hub_table(hub)) as router:
        for ask in (router.text, router.chat):
            assert (await ask("m")).prompt_tokens == (await ask("local")).prompt_tokens


async def test_a_hub_that_is_wrong_or_down_refuses_only_its_models_texts(
    tmp_path: Path, model_folder: Path, hub: FakeHub, held_port: int
) -> None:
    wrong = hub_table(hub, **{"tokenizer.json": "0" * 64})
    down = hub_table(hub).replace(hub.url, f"http://127.0.0.1:{held_port}")
    models = (
        f'[[models]]\nname = "wrong"\n{wrong}'
        f'[[models]]\nname = "down"\n{down.replace(COMMIT, "f" * 40)}'
        f'[[models]]\nname = "gone"\n{hub_table(hub).replace(COMMIT, "e" * 40)}'
        f'[[models]]\nname = "whole"\ntokenizer = "{model_folder}"\n'
    )
    reasons = {
        "wrong": "SHA-256",
        "down": "cannot be reached: .*nothing listens there",
        "gone": "has no revision eeee",
    }
    async with routing(tmp_path, models) as router:
        for name, reason in reasons.items():
            with pytest.raises(grpc.aio.AioRpcError, match=reason) as raised:
                await router.text(name)
            assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
            assert (await router.ids(name, 5)).prompt_tokens == 1
        assert (await router.text("whole")).prompt_tokens == tokens_of(model_folder)


async def test_while_a_tokenizer_is_being_loaded_texts_are_not_covered_and_ids_are(
    tmp_path: Path, slow_hub: FakeHub
) -> None:
    item = pb.MultimodalItem(hash="x", offset=5, length=3)
    models = '[limits]\ntokenize-seconds = 0.05\n[[models]]\nname = "m"\n' + hub_table(slow_hub)
    async with routing(tmp_path, models) as router:
        early = await router.text("m")
        assert (early.prompt_tokens, early.covered_chars) == (0, 0)
        assert (await router.chat("m")).prompt_tokens == 0
        await router.score(pb.Prompt(model="m", text=TEXT, multimodal=[item]))
        assert (await router.ids("m", 5)).prompt_tokens == 1
        slow_hub.gate.set()
        while not (await router.text("m")).covered_chars:
            await asyncio.sleep(0)


async def test_texts_that_were_not_tokenised_in_time_are_picked_for_each_by_its_length(
    tmp_path: Path, slow_hub: FakeHub
) -> None:
    tables = (
        "[limits]\ntokenize-seconds = 0.05\n"
        # No prefill is estimated to be over before the other text is placed.
        "[pick]\nprefill-base-seconds = 60\n"
        "[probe]\ninterval-seconds = 0\n"
    )
    pods = "".join(f'[[pods]]\nid = "{one}"\nmodel = "m"\naddress = "{one}:80"\n' for one in "ab")
    async with routing(
        tmp_path, f'{tables}{pods}[[models]]\nname = "m"\n{hub_table(slow_hub)}'
    ) as router:
        picked = await asyncio.gather(
            *(
                router.stub.Pick(pb.PickRequest(prompt=pb.Prompt(model="m", text=text)), timeout=30)
                for text in (TEXT * 100, "Another. " * 1000)
            )
        )
        assert [one.prompt_tokens for one in picked] == [len(TEXT) * 25, 2250]
        assert {one.candidates[0].pod for one in picked} == {"a", "b"}
        slow_hub.gate.set()


async def test_texts_and_chats_are_what_a_real_worker_says_they_are(
    tmp_path: Path, model_folder: Path
) -> None:
    worker = Worker("pod-1", Process("worker", tmp_path / "worker.log"))
    settings = WorkerSettings(blocks=50, block_size=16, speed=1000.0, vocab_size=2048)
    await worker.start(settings, f"--tokenizer={model_folder}")
    models = (
        f'[[models]]\nname = "local"\ntokenizer = "{model_folder}"\n[[models]]\nname = "demo"\n'
        f'aliases = ["alias"]\ntokenizer-urls = ["http://{worker.address}"]\n{PATIENT}'
    )
    try:
        async with routing(tmp_path, models) as router:
            for name in ("demo", "alias"):
                expected = await router.chat("local")
                assert expected.prompt_tokens > 10
                assert (await router.chat(name)).prompt_tokens == expected.prompt_tokens
                for text in ("short", TEXT * 50):
                    answer = await router.text(name, text)
                    assert answer.prompt_tokens == (await router.text("local", text)).prompt_tokens
                    assert answer.covered_chars == len(text)
    finally:
        await worker.process.stop()


async def test_the_same_chat_asks_the_engine_once(tmp_path: Path, engine: FakeEngine) -> None:
    models = f'[[models]]\nname = "m"\ntokenizer-urls = ["{engine.url}"]\n{PATIENT}'
    async with routing(tmp_path, models) as router:
        for _ in range(3):
            assert (await router.chat("m")).prompt_tokens == 1 + len(TEXT)
    [asked] = [body for body in engine.bodies() if "messages" in body]
    assert asked == CHAT | {
        "model": "m",
        "add_generation_prompt": True,
        "continue_final_message": False,
        "add_special_tokens": False,
    }


async def test_engines_are_asked_with_the_newest_key(tmp_path: Path, engine: FakeEngine) -> None:
    key = tmp_path / "key"
    models = (
        f'[[models]]\nname = "m"\ntokenizer-urls = ["{engine.url}"]\n'
        f'tokenizer-key-file = "key"\n{PATIENT}'
    )
    key.write_text("first\n")
    async with routing(tmp_path, models) as router:
        numbers = count()
        for newest in ("first", "second"):
            key.write_text(f"{newest}\n")
            asked_with = ""
            while asked_with != f"Bearer {newest}":
                # A text that is not known yet.
                await router.text("m", f"{next(numbers)} of a text")
                asked_with = engine.asked[-1].headers["Authorization"]


async def test_an_engine_that_goes_away_leaves_its_texts_to_the_folder(
    tmp_path: Path, model_folder: Path, engine: FakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    models = (
        f'[[models]]\nname = "m"\ntokenizer = "{model_folder}"\ntokenizer-urls = ["{engine.url}"]\n'
        f'[[models]]\nname = "local"\ntokenizer = "{model_folder}"\n{PATIENT}'
    )
    async with routing(tmp_path, models) as router:
        assert (await router.chat("m")).prompt_tokens == 1 + len(TEXT)
        engine.answer = lambda _: Answer(500)
        other = TEXT + " Then"
        assert (await router.text("m", other)).prompt_tokens == tokens_of(model_folder, other)
        CHAT["messages"][0]["content"] = other
        try:
            assert (await router.chat("m")).prompt_tokens == (
                await router.chat("local")
            ).prompt_tokens
        finally:
            CHAT["messages"][0]["content"] = TEXT
    assert "the local tokenizer is used instead" in caplog.text
    assert "patient" not in caplog.text


async def test_an_engine_alone_that_is_away_refuses_texts_and_comes_back(
    tmp_path: Path, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(texts, "RETRY_SECONDS", 0.01)
    monkeypatch.setattr(tokenizer_sources, "SKIP_SECONDS", 0.01)
    models = f'[[models]]\nname = "m"\ntokenizer-urls = ["{engine.url}"]\n{PATIENT}'
    engine.answer = lambda _: Answer(500)
    async with routing(tmp_path, models) as router:
        for ask in (router.text, router.chat):
            with pytest.raises(grpc.aio.AioRpcError, match="'m'") as raised:
                await ask("m")
            assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
        engine.answer = tokenized
        while True:
            try:
                answer = await router.text("m")
            except grpc.aio.AioRpcError:
                continue
            break
        assert answer.prompt_tokens == 1 + len(TEXT)
        refused = Answer(400, b'{"message": "roles must alternate"}')
        engine.answer = lambda asked: refused if TEXT.encode() in asked.body else tokenized(asked)
        with pytest.raises(grpc.aio.AioRpcError, match="roles must alternate") as raised:
            await router.chat("m")
        assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_check_config_names_a_folder_that_cannot_be_loaded(
    tmp_path: Path, model_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "warmpath.toml"
    (tmp_path / "tokenizer.json").write_text("{broken", encoding="utf-8")
    path.write_text('[[models]]\nname = "m"\n\ntokenizer = "."\n', encoding="utf-8")
    assert check_config.main([str(path)]) == 1
    assert f"{path}:4: models[0].tokenizer: {tmp_path}" in capsys.readouterr().err
    (tmp_path / "tokenizer.json").write_bytes((model_folder / "tokenizer.json").read_bytes())
    assert check_config.main([str(path)]) == 0
    (tmp_path / "chat_template.jinja").write_text("{% broken", encoding="utf-8")
    assert check_config.main([str(path)]) == 1
    assert "the chat template is broken" in capsys.readouterr().err


def test_check_config_looks_into_the_cache_where_that_is_all_there_is(
    tmp_path: Path, hub: FakeHub, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "warmpath.toml"
    table = hub_table(hub)
    path.write_text('[[models]]\nname = "m"\n' + table, encoding="utf-8")
    assert check_config.main([str(path)]) == 0
    offline = table.replace("files =", "offline = true, files =")
    path.write_text('[[models]]\nname = "m"\n' + offline, encoding="utf-8")
    assert check_config.main([str(path)]) == 1
    assert "models[0].hub" in capsys.readouterr().err
    assert hub.asked == []
