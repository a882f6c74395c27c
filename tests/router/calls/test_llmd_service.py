"""llm-d's indexer service on a running router, asked by clients made of the service's .proto file."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_tools import protoc

from tests.h2grpc.served import BOTH, MISSING, ends_with
from tests.router.running_router import metrics_page, running_router
from tests.router.service_stand import Stand, standing
from tests.router.test_drain import LATE
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb

OURS = Path(__file__).parents[3] / "proto/indexer/v1/indexer.proto"
LLMDS = Path(os.environ.get("WARMPATH_LLMD_PROTO", ""))
"""llm-d's own file, `api/indexerpb/indexer.proto` of llm-d/llm-d-kv-cache, where a test may read it."""
METHOD = "/indexer.v1.IndexerService/GetPodScores"
TEXT = "You are a patient assistant that explains how prefix caching works, step by step. " * 4


class Client:
    """Calls GetPodScores with messages made of a .proto file, and with nothing else."""

    def __init__(self, proto: Path, folder: Path) -> None:
        """Compile the file; `folder` is for what that writes."""
        compiled = folder / "descriptors"
        arguments = [f"-I{proto.parent}", f"--descriptor_set_out={compiled}", proto.name]
        assert protoc.main(["protoc", f"-I{files('grpc_tools') / '_proto'}", *arguments]) == 0
        pool = DescriptorPool()
        for file in FileDescriptorSet.FromString(compiled.read_bytes()).file:
            pool.Add(file)  # type: ignore[no-untyped-call]
        service = pool.FindServiceByName("indexer.v1.IndexerService")  # type: ignore[no-untyped-call]
        method = service.methods_by_name["GetPodScores"]
        assert len(service.methods) == 1
        self.request: Any = GetMessageClass(method.input_type)
        self.response: Any = GetMessageClass(method.output_type)

    async def ask(
        self,
        channel: grpc.aio.Channel,
        prompt: str = TEXT,
        model: str = "demo",
        pods: tuple[str, ...] = (),
    ) -> list[tuple[str, float]]:
        call: Callable[..., Any] = channel.unary_unary(
            METHOD,
            request_serializer=self.request.SerializeToString,
            response_deserializer=self.response.FromString,
        )
        request = self.request(prompt=prompt, model_name=model, pod_identifiers=pods)
        answer = await call(request, timeout=10)
        return [(score.pod, score.score) for score in answer.scores]


SIZE = 16
PROTOS = [
    "ours",
    pytest.param("llm-d's", marks=pytest.mark.skipif(not LLMDS.is_file(), reason="WARMPATH_LLMD_PROTO names no file of llm-d's")),
]  # fmt: skip


@pytest.fixture(params=PROTOS)
def client(request: pytest.FixtureRequest, tmp_path: Path) -> Client:
    return Client(OURS if request.param == "ours" else LLMDS, tmp_path)


@pytest.fixture(params=BOTH)
async def stand(
    request: pytest.FixtureRequest, tmp_path: Path, model_folder: Path
) -> AsyncIterator[Stand]:
    async with standing(tmp_path, model_folder, transport=request.param) as stand:
        yield stand


Asking = Callable[..., Awaitable[list[tuple[str, float]]]]


@pytest.fixture
def ask(client: Client, stand: Stand) -> Asking:
    return partial(client.ask, stand.channel)


async def warm(stand: Stand, prompt: str = TEXT) -> int:
    """Have the worker cache a prompt; return its number of tokens."""
    await stand.generate({"model": "demo", "prompt": prompt})
    tokens = (await stand.score(pb.Prompt(model="demo", text=prompt))).prompt_tokens
    await stand.has_blocks(tokens // SIZE)
    return tokens


async def test_a_pod_scores_the_full_blocks_that_it_holds(stand: Stand, ask: Asking) -> None:
    assert await ask() == []
    tokens = await warm(stand)
    address = stand.worker.address
    assert await ask() == [(address, float(tokens // SIZE))]
    assert await ask(f"{TEXT}And another question?") == [(address, float(tokens // SIZE))]
    assert await ask(TEXT[: len(TEXT) // 2]) == [(address, float(tokens // 2 // SIZE))]
    for prompt, model in (
        (f"Not {TEXT}", "demo"),
        ("", "demo"),
        ("short", "demo"),
        (TEXT, "no-such-model"),
    ):
        assert await ask(prompt, model) == [], "which is no error"


async def test_a_block_that_ends_the_prompt_counts_as_with_llmd(stand: Stand, ask: Asking) -> None:
    prompt = TEXT
    while True:
        scored = await stand.score(pb.Prompt(model="demo", text=prompt))
        if scored.prompt_tokens % SIZE == 0:
            break
        prompt = prompt[:-1]
    tokens = await warm(stand, prompt)
    [score] = (await stand.score(pb.Prompt(model="demo", text=prompt))).scores
    assert score.matched_tokens == tokens - SIZE
    assert [count for _, count in await ask(prompt)] == [tokens / SIZE]


async def test_a_pod_is_called_by_its_address_its_host_or_its_id(stand: Stand, ask: Asking) -> None:
    score = await warm(stand) // SIZE
    address = stand.worker.address
    host = address.rpartition(":")[0]
    for name in (address, host, "pod-1"):
        assert await ask(pods=(name,)) == [(name, score)]
        assert await ask(pods=(name, "10.9.9.9:8000", name, "")) == [(name, score)]
    assert sorted(await ask(pods=(address, "pod-1"))) == sorted(
        [(address, score), ("pod-1", score)]
    )
    assert await ask(pods=("10.9.9.9:8000",)) == []


async def test_an_alias_is_the_model_and_an_adapter_is_apart(stand: Stand, ask: Asking) -> None:
    await warm(stand)
    assert await ask(model="demo-alias") == await ask()
    assert await ask(model="tuned") == []
    await stand.generate({"model": "tuned", "prompt": TEXT})
    while not await ask(model="tuned"):
        await asyncio.sleep(0.01)
    assert await ask(model="tuned") == await ask()


async def test_a_bad_request_names_its_field_and_the_limit(stand: Stand, ask: Asking) -> None:
    invalid = grpc.StatusCode.INVALID_ARGUMENT
    with ends_with(invalid, "model_name: is missing"):
        await ask(model="")
    with ends_with(invalid, "prompt: has 4001 bytes; limits.max-prompt-bytes is 4000"):
        await ask("x" * 4001)
    with ends_with(invalid, "prompt: has 2000 tokens; limits.max-prompt-tokens is 1000"):
        await ask(" ".join("ab" * 1000))
    lacks = "prompt: model 'ids-only' has no tokenizer configured, and its pods' /tokenize: there is none"
    with ends_with(invalid, f"{lacks}; send token ids"):
        await ask(model="ids-only")
    with ends_with(invalid, "pod_identifiers: has more than 4096 entries"):
        await ask(pods=("pod-1",) * 4097)
    with ends_with(invalid, "pod_identifiers: has more than 4096 entries"):
        await ask("x" * 3000, pods=("a-name-that-takes-bytes",) * 4097)
    raw = stand.channel.unary_unary(METHOD)
    with ends_with(invalid, "prompt: is not UTF-8"):
        await raw(b"\x0a\x01\xff")
    with ends_with(invalid, "request: is not a GetPodScoresRequest"):
        await raw(b"\x0a\x05")


async def test_the_bytes_on_the_wire_are_llmds(stand: Stand) -> None:
    await warm(stand)
    address = stand.worker.address.encode()
    prompt = TEXT.encode()
    assert 0x80 <= len(prompt) < 0x4000
    length = bytes([len(prompt) & 0x7F | 0x80, len(prompt) >> 7])
    asked = b"\x0a" + length + prompt + b"\x12\x04demo" + b"\x1a" + bytes([len(address)]) + address
    told = await stand.channel.unary_unary(METHOD)(asked)
    assert told[:1] == b"\x0a"
    assert told[2:-8] == b"\x0a" + bytes([len(address)]) + address + b"\x11"


async def test_health_and_metrics_know_the_service(stand: Stand, ask: Asking) -> None:
    health = health_pb2_grpc.HealthStub(stand.channel)  # type: ignore[no-untyped-call]
    check = health_pb2.HealthCheckRequest(service="indexer.v1.IndexerService")
    assert (await health.Check(check)).status == health_pb2.HealthCheckResponse.SERVING
    await ask()
    with ends_with(grpc.StatusCode.INVALID_ARGUMENT):
        await ask(model="")
    text = await metrics_page(stand.router.http_address)
    for code in ("OK", "INVALID_ARGUMENT"):
        assert f'warmpath_requests_total{{code="{code}",method="GetPodScores"}} 1.0' in text


async def test_blocks_and_names_are_configured(
    tmp_path: Path, model_folder: Path, client: Client
) -> None:
    more = '\n[llmd]\nblock-size = 8\nidentifier = "host"\n'
    async with standing(tmp_path, model_folder, more=more) as stand:
        tokens = await warm(stand)
        host = stand.worker.address.rpartition(":")[0]
        assert await client.ask(stand.channel) == [(host, tokens // SIZE * 2)]


@pytest.mark.skipif(bool(MISSING), reason=MISSING)
async def test_more_calls_than_may_wait_are_refused_with_a_hint(
    tmp_path: Path, model_folder: Path, client: Client
) -> None:
    tables = f"""
        [limits]
        wait-seconds = 0.000001
        [[models]]
        name = "demo"
        tokenizer = "{model_folder}"
        """
    async with running_router(tmp_path, tables, transport="nghttp2") as (router, channel):
        ask = partial(client.ask, channel)
        refused: list[grpc.aio.AioRpcError] = []
        while not refused:
            told = await asyncio.gather(*(ask() for _ in range(400)), return_exceptions=True)
            refused = [one for one in told if isinstance(one, grpc.aio.AioRpcError)]
            assert told.count([]) == len(told) - len(refused) > 0
        text = await metrics_page(router.http_address)
    for one in refused:
        assert one.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "limits.wait-seconds" in (one.details() or "")
        assert "grpc-retry-pushback-ms" in one.trailing_metadata()
    counted = 'warmpath_requests_total{code="RESOURCE_EXHAUSTED",method="GetPodScores"}'
    assert f"{counted} {len(refused)}.0" in text
    counted = 'warmpath_refusals_total{method="GetPodScores",reason="OVERLOADED"}'
    assert f"{counted} {len(refused)}.0" in text


@pytest.mark.parametrize("transport", BOTH)
async def test_a_router_that_ends_answers_first_and_refuses_then(
    tmp_path: Path, model_folder: Path, client: Client, transport: str
) -> None:
    async with AsyncExitStack() as stack:
        # On a busy machine a client may be silent for longer than a tenth of half a second, for which it
        # would count as gone.
        stand = await stack.enter_async_context(
            standing(tmp_path, model_folder, transport=transport, drain_seconds=8)
        )
        await warm(stand)
        channel = grpc.aio.insecure_channel(stand.router.address)
        ask = partial(client.ask, channel)
        assert await ask()
        ending = asyncio.create_task(stack.pop_all().aclose())
        with ends_with(grpc.StatusCode.UNAVAILABLE, LATE):
            while True:
                assert await ask()
        await ending
        await channel.close()
