"""The key of engines that tokenise is read again when its file changes."""

from pathlib import Path

import grpc.aio
import pytest

from tests.fake_engine import FakeEngine
from tests.router.running_router import running_router
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.proto.pb.warmpath.v1 import router_pb2_grpc
from warmpath.router.prompt import tokenizer_sources


async def test_engines_are_asked_with_the_newest_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenizer_sources, "REMOTE_SECONDS", 30.0)
    key = tmp_path / "key"
    key.write_text("first-key\n")
    with FakeEngine() as engine:
        tables = (
            f'[[models]]\nname = "m"\ntokenizer-urls = ["{engine.url}"]\n'
            'tokenizer-key-file = "key"\n[limits]\ntokenize-seconds = 30.0\n'
        )
        async with running_router(tmp_path, tables) as (_, channel):
            stub = router_pb2_grpc.RouterStub(channel)
            await _score(stub, 0)
            assert engine.asked[-1].headers["Authorization"] == "Bearer first-key"
            key.write_text("second-key\n")
            number = 1
            while engine.asked[-1].headers["Authorization"] != "Bearer second-key":
                await _score(stub, number)
                number += 1


async def _score(stub: router_pb2_grpc.RouterStub, number: int) -> None:
    """Ask for a text that is not known yet."""
    prompt = pb.Prompt(model="m", text=f"{number} of a text")
    try:
        await stub.Score(pb.ScoreRequest(prompt=prompt), timeout=30)
    except grpc.aio.AioRpcError as error:
        raise AssertionError(error.details()) from None
