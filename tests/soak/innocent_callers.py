"""Well-behaved callers: none of their calls may fail, and no answer may be wrong."""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from random import Random
from typing import Any, cast

import aiohttp
import grpc
import grpc.aio
from grpc_health.v1 import health_pb2

from tests.h2grpc.http2.hostile_client import Http2Client
from tests.soak.engines import HonestEngine, chat_body
from warmpath.client.failure import failure_of
from warmpath.indexer.keys.key import pack_tokens
from warmpath.indexer.ranks import STOOD_STILL
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.proto.pb.warmpath.v1 import router_pb2_grpc
from warmpath.proto.pb.warmpath.watch.v1 import cache_watch_pb2, cache_watch_pb2_grpc

TIMEOUT = 20.0
"""Most seconds of a call, on a machine that others use too."""
PAUSE = 0.05
LEAVE_SECONDS = 0.004
"""Most seconds after which a caller leaves a pick: about as long as an answer takes."""
BOOKED_SECONDS = 5.0
"""Most seconds for which a pick that its caller left may be booked; bookings expire after 30."""
SERVING = health_pb2.HealthCheckResponse.SERVING
TEXTS = [f"tell me a story of {animal}s" for animal in ("wolf", "hare", "snail")]


class InnocentCallers:
    """Ask about the engines' pods: the cache of the first (`still`) never changes, the others' do."""

    def __init__(
        self,
        stub: router_pb2_grpc.RouterStub,
        engines: list[HonestEngine],
        *,
        http: str,
        going_on: Callable[[], bool],
    ) -> None:
        self.calls: Counter[str] = Counter()
        self.failed: list[str] = []
        self.still = 0
        """Answers that were not exact since the router got no processor time for a second or two."""
        self.overloaded = 0
        """Calls that were refused for an overload, as docs/reference/failures.md says; callers then go on alone."""
        self.slowest = 0.0
        self._stub = stub
        self._still = engines[0]
        self._engines = engines
        self._http = http
        self._going_on = going_on
        self._rng = Random(7)
        self._texts: dict[str, int] = {}

    def all(self, router: str, watch: str, keyspace: str) -> list[Awaitable[None]]:
        """Return the callers' tasks, each of which repeats one kind of call until the soak is over."""
        acts = (
            self.score, self.score_all, self.pick, self.explain, self.list_pods, self.text,
            self.chat, self.stream, self.pages, self.diagnose,
        )  # fmt: skip
        named = {act.__name__: act for act in acts} | {
            "watch": partial(self.watch, watch, keyspace),
            "health": partial(self.health, router, watch),
            "leave": partial(self.leave, router),
        }
        return [self._again(name, act) for name, act in named.items()]

    async def _again(self, name: str, act: Callable[[], Awaitable[None]]) -> None:
        while self._going_on():
            begun = time.monotonic()
            try:
                await act()
            except (AssertionError, OSError, aiohttp.ClientError, TimeoutError) as error:
                self.failed.append(f"{name}: {error!r:.300}")
            except grpc.aio.AioRpcError as error:
                if failure_of(error).reason == "OVERLOADED":
                    self.overloaded += 1
                else:
                    self.failed.append(f"{name}: {error.code()}: {error.details()!r:.200}")
            self.calls[name] += 1
            self.slowest = max(self.slowest, time.monotonic() - begun)
            await asyncio.sleep(PAUSE * (1 + self._rng.random()))

    def _prompt(self) -> tuple[pb.Prompt, int]:
        tokens = self._rng.choice(self._still.prompts)
        prompt = pb.Prompt(model="m", token_ids_packed=pack_tokens(tokens))
        return prompt, self._still.held_tokens(tokens)

    async def score(self) -> None:
        """Score the pod that does not change: tokens and exact trust must be right."""
        prompt, held = self._prompt()
        request = pb.ScoreRequest(prompt=prompt, pods=[self._still.pod])
        [one] = (await self._stub.Score(request, timeout=TIMEOUT)).scores
        assert one.matched_tokens - one.believed_tokens == held, (one.matched_tokens, held)
        self._trusts(one.trust)

    def _trusts(self, trust: pb.Trust) -> None:
        if trust.reason == STOOD_STILL:
            self.still += 1
        else:
            assert trust.level == pb.Trust.EXACT, trust.reason

    async def score_all(self) -> None:
        prompt, held = self._prompt()
        scores = (await self._stub.Score(pb.ScoreRequest(prompt=prompt), timeout=TIMEOUT)).scores
        by_pod = {one.pod: one for one in scores}
        assert by_pod.keys() >= {one.pod for one in self._engines}, sorted(by_pod)
        assert by_pod[self._still.pod].matched_tokens == held

    async def pick(self) -> None:
        """Pick one of the honest pods, and report its first token and its end."""
        prompt, _ = self._prompt()
        pods = [one.pod for one in self._engines]
        request = pb.PickRequest(prompt=prompt, pods=pods, session_id=str(self._rng.randrange(99)))
        picked = await self._stub.Pick(request, timeout=TIMEOUT)
        found = {one.pod for one in picked.candidates}
        assert found == set(pods), found
        for event in (pb.ReportRequest.FIRST_TOKEN, pb.ReportRequest.FINISHED):
            report = pb.ReportRequest(booking_id=picked.booking_id, event=event)
            answer = await self._stub.Report(report, timeout=TIMEOUT)
            assert answer.known, event

    async def leave(self, router: str) -> None:
        """Cancel picks at any moment: soon nothing of them is booked on the pod that nobody else uses."""
        prompt, _ = self._prompt()
        alone = pb.Prompt(model="alone", token_ids_packed=prompt.token_ids_packed)
        raw = pb.PickRequest(prompt=alone).SerializeToString()
        async with Http2Client(router, window=1 << 16) as client:
            for _ in range(20):
                # gRPC's library sends no reset once it has the whole answer, although the caller left.
                stream = client.call("Pick", raw)
                await asyncio.sleep(self._rng.random() * LEAVE_SECONDS)
                client.cancel(stream)
        end = time.monotonic() + BOOKED_SECONDS
        while True:
            told = await self._stub.Explain(pb.ExplainRequest(prompt=alone), timeout=TIMEOUT)
            booked = told.candidates[0].outstanding_tokens
            if not booked:
                return
            assert time.monotonic() < end, f"{booked} tokens of picks whose callers left are booked"
            await asyncio.sleep(0.2)

    async def explain(self) -> None:
        prompt, _ = self._prompt()
        request = pb.ExplainRequest(prompt=prompt, pods=[self._still.pod])
        told = await self._stub.Explain(request, timeout=TIMEOUT)
        assert [one.pod for one in told.candidates] == [self._still.pod]

    async def list_pods(self) -> None:
        """List all pods: the still one is exact, with its true number of blocks."""
        listed = await self._stub.ListPods(pb.ListPodsRequest(), timeout=TIMEOUT)
        [still] = [one for one in listed.pods if one.id == self._still.pod]
        [rank] = still.ranks
        assert sum(tier.blocks for tier in rank.tiers) == len(self._still.cache.blocks)
        self._trusts(rank.trust)

    async def text(self) -> None:
        """Score a text: it must always have the same number of tokens."""
        await self._tokens_of(pb.Prompt(model="text", text=self._rng.choice(TEXTS)))

    async def chat(self) -> None:
        await self._tokens_of(pb.Prompt(model="text", chat_body=chat_body(self._rng.choice(TEXTS))))

    async def _tokens_of(self, prompt: pb.Prompt) -> None:
        answer = await self._stub.Score(pb.ScoreRequest(prompt=prompt), timeout=TIMEOUT)
        name = prompt.text or prompt.chat_body.decode()
        assert answer.prompt_tokens == self._texts.setdefault(name, answer.prompt_tokens)
        assert answer.prompt_tokens

    async def stream(self) -> None:
        prompt, held = self._prompt()

        async def requests():  # noqa: ANN202  an iterator
            for number in range(1, 4):
                yield pb.ScoreRequest(prompt=prompt, pods=[self._still.pod], request_id=number)

        call = cast("Any", self._stub.ScoreStream(requests(), timeout=TIMEOUT))
        replies = {one.request_id: one.response async for one in call}
        assert replies.keys() == {1, 2, 3}, replies.keys()
        assert {one.scores[0].matched_tokens for one in replies.values()} == {held}

    async def pages(self) -> None:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(TIMEOUT)) as session:
            for page in ("healthz", "readyz", "metrics"):
                async with session.get(f"http://{self._http}/{page}") as response:
                    body = await response.text()
                    assert response.status == 200, (page, response.status, body[:200])
        await asyncio.sleep(1)

    async def diagnose(self) -> None:
        await self._stub.Diagnose(pb.DiagnoseRequest(), timeout=TIMEOUT)
        await self._stub.ListDecisions(pb.ListDecisionsRequest(limit=5), timeout=TIMEOUT)
        await asyncio.sleep(1)

    async def health(self, *addresses: str) -> None:
        for address in addresses:
            async with grpc.aio.insecure_channel(address) as channel:
                ask = channel.unary_unary("/grpc.health.v1.Health/Check")
                told = await ask(b"", timeout=TIMEOUT)
                assert health_pb2.HealthCheckResponse.FromString(told).status == SERVING, address
        await asyncio.sleep(1)

    async def watch(self, address: str, keyspace: str) -> None:
        """Watch the publisher from its first message to the snapshot's end."""
        async with grpc.aio.insecure_channel(address) as channel:
            stub = cache_watch_pb2_grpc.CacheWatchStub(channel)
            request = cache_watch_pb2.WatchRequest(keyspace=keyspace)
            kinds = []
            async for one in cast("Any", stub.Watch(request, timeout=TIMEOUT)):
                kinds.append(one.WhichOneof("kind"))
                if kinds[-1] == "end":
                    break
            assert kinds[0] == "hello", kinds
        await asyncio.sleep(1)
