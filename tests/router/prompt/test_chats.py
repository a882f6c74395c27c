"""Chats through the whole router: hostile templates and bad bodies, and the service goes on."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from unittest.mock import patch

import grpc.aio
import pytest

from tests.router.running_router import running_router
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.proto.pb.warmpath.v1 import router_pb2_grpc
from warmpath.router.prompt import texts

NESTED = "{% for a in range(99999) %}{% for b in range(99999) %}%s{% endfor %}{% endfor %}"
TEMPLATES = {
    "loops": NESTED.replace("%s", ""),
    "writes": NESTED.replace("%s", "and so on"),
    "echoes": "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}",
}  # fmt: skip
STATUS = grpc.StatusCode
HI = [{"role": "user", "content": "hi"}]


@asynccontextmanager
async def rendering(
    tmp_path: Path, model_folder: Path, seconds: int
) -> AsyncIterator[router_pb2_grpc.RouterStub]:
    """Run a router with a limit of wall-clock seconds for a rendering."""
    models = ""
    for name, template in TEMPLATES.items():
        folder = tmp_path / name
        folder.mkdir()
        tokenizer = (model_folder / "tokenizer.json").read_text(encoding="utf-8")
        (folder / "tokenizer.json").write_text(tokenizer, encoding="utf-8")
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
        models += f'[[models]]\nname = "{name}"\ntokenizer = "{name}"\n'
    tables = f"""
        [limits]
        tokenize-seconds = 100
        [templates]
        workers = 1
        {models}
        [[models]]
        name = "ids-only"
        """
    with (
        patch.object(texts, "RENDER_SECONDS", seconds),
        patch.object(texts, "MOST_OUTPUT_BYTES", 100_000),
    ):
        async with running_router(tmp_path, tables, metrics="") as (_, channel):
            yield router_pb2_grpc.RouterStub(channel)


@pytest.fixture
async def stub(tmp_path: Path, model_folder: Path) -> AsyncIterator[router_pb2_grpc.RouterStub]:
    """Return a client of a router whose limit of time no template here reaches by work that ends."""
    async with rendering(tmp_path, model_folder, seconds=60) as stub:
        yield stub


def chat(model: str, **fields: object) -> pb.ScoreRequest:
    body = json.dumps({"model": model, "messages": HI, **fields})
    return pb.ScoreRequest(prompt=pb.Prompt(chat_body=body.encode()))


async def goes_on(stub: router_pb2_grpc.RouterStub) -> None:
    assert (await stub.Score(chat("echoes"))).prompt_tokens > 0


REFUSED = [
    (chat("writes"), "writes more than 100000 bytes"),
    (chat("echoes", messages=[{"role": "user", "content": "\ud800"}]), "prompt.chat_body: is not JSON: a string holds a lone surrogate"),
    (chat("echoes", chat_template_kwargs={"messages": []}), "prompt.chat_body.chat_template_kwargs.messages: is set by the engine only"),
    (chat("echoes", messages=[{"role": "user", "content": [{"type": "file"}]}]), "prompt.chat_body.messages[0].content[0].type: 'file' is not supported"),
    (chat("ids-only"), "'ids-only' has no tokenizer configured"),
]  # fmt: skip


async def test_what_cannot_be_rendered_is_refused_by_name_and_the_service_goes_on(
    stub: router_pb2_grpc.RouterStub,
) -> None:
    for request, message in REFUSED:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await stub.Score(request)
        assert message in (raised.value.details() or "")
        assert raised.value.code() is STATUS.INVALID_ARGUMENT, message
        await goes_on(stub)


async def test_a_template_that_never_ends_is_ended_and_the_service_goes_on(
    tmp_path: Path, model_folder: Path
) -> None:
    async with rendering(tmp_path, model_folder, seconds=1) as stub:
        with pytest.raises(grpc.aio.AioRpcError, match="takes longer than 1 s") as raised:
            await stub.Score(chat("loops"))
        assert raised.value.code() is STATUS.DEADLINE_EXCEEDED
        while True:
            try:
                await goes_on(stub)
            except grpc.aio.AioRpcError as error:
                # On a machine that is busy enough, any chat takes longer.
                assert error.code() is STATUS.DEADLINE_EXCEEDED  # noqa: PT017
            else:
                break


async def test_a_deadline_that_passes_in_the_queue_is_told(
    stub: router_pb2_grpc.RouterStub,
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await stub.Score(chat("echoes"), timeout=0.001)
    assert raised.value.code() is STATUS.DEADLINE_EXCEEDED
    await goes_on(stub)
