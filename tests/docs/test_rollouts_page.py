"""The examples of docs/guides/rollouts-and-ray-serve.md, each beside a stand-in of its framework."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import aiohttp
import pydantic
import pytest

from tests.docs.page_code import blocks, module
from tests.docs.test_pages import ROOT
from tests.lab.simworker.local_worker import LocalWorker
from tests.router.pick_stand import pod
from tests.router.running_router import running_router
from tests.waiting import until
from tests.warmpath.client.test_openai import decided
from warmpath import AsyncClient, Prompt
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb

PAGE = ROOT / "docs" / "guides" / "rollouts-and-ray-serve.md"
RAY, VERL, SLIME = blocks(PAGE)
LARGE = ("--model=policy", "--blocks=4000")
PROMPT = list(range(100, 300))
"""Fifty blocks of four."""


class Fleet:
    """Two engines, and a router."""

    def __init__(self, workers: dict[str, LocalWorker], router: str) -> None:
        self.workers = workers
        self.router = router
        self.client = AsyncClient(router, model="policy")

    async def matched(self, prompt: Prompt) -> list[int]:
        return [one.matched_tokens for one in (await self.client.score(prompt)).scores]


@asynccontextmanager
async def fleet(folder: Path, *, has_events: bool = True) -> AsyncIterator[Fleet]:
    async with LocalWorker(*LARGE) as one, LocalWorker(*LARGE) as other:
        workers = {"pod-1": one, "pod-2": other}
        tables = '[[models]]\nname = "policy"\n'
        for name, worker in workers.items():
            keys = {"events": worker.events, "replay": worker.replay} if has_events else {}
            tables += pod(name, worker.address, model="policy", **keys)
        async with running_router(folder, tables) as (router, _):
            made = Fleet(workers, router.address)
            async with made.client:
                yield made


def stand_in(monkeypatch: pytest.MonkeyPatch, name: str, **content: object) -> None:
    """Put a module, and the packages that it is in, in the place of a framework's."""
    parts = name.split(".")
    for end in range(1, len(parts)):
        monkeypatch.setitem(sys.modules, ".".join(parts[:end]), ModuleType(parts[end - 1]))
    made = ModuleType(name)
    vars(made).update(content)
    monkeypatch.setitem(sys.modules, name, made)


class CompletionRequest(pydantic.BaseModel):
    """Ray's, which is vLLM's."""

    model: str
    prompt: list[int]
    max_tokens: int


class ServeRouter:
    """What Ray Serve does with a router's choice: it offers the request to one replica after another."""

    def initialize_state(self, target: str) -> None:
        raise NotImplementedError

    async def serve(self, name: str, workers: dict[str, LocalWorker], busy: str = "") -> str:
        router: Any = self
        replicas = [SimpleNamespace(replica_id=SimpleNamespace(unique_id=pod)) for pod in workers]
        body = CompletionRequest(model="policy", prompt=PROMPT, max_tokens=2)
        metadata = SimpleNamespace(internal_request_id=name)
        pending = SimpleNamespace(args=[body], kwargs={}, metadata=metadata)
        ranked = [one for group in await router.choose_replicas(replicas, pending) for one in group]
        taken = next(one.replica_id for one in ranked if one.replica_id.unique_id != busy)
        router.on_request_routed(pending, taken, None)
        await workers[taken.unique_id].generate(prompt=PROMPT, model="policy", max_tokens=2)
        if name == "cancelled":
            router.on_request_cancelled(name)
        else:
            router.on_request_completed(taken, name)
        return str(taken.unique_id)


async def test_ray_serve_s_router(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, "ray.serve.request_router", RequestRouter=ServeRouter)
    router = module("warmpath_router", RAY, monkeypatch).WarmpathRouter()
    async with fleet(tmp_path) as made:
        router.initialize_state(made.router)
        async with router.warmpath:
            first = await router.serve("1", made.workers)
            assert await router.serve("2", made.workers) == first
            other = await router.serve("cancelled", made.workers, busy=first)
            assert other != first
            decisions = await decided(made.router, 3)
    assert router.requests == {}
    assert {one.pod for one in decisions if one.state == pb.Decision.FAILED} == {other}
    assert [one.state for one in decisions].count(pb.Decision.FINISHED) == 2


class Handle:
    """A Ray actor that serves as verl's `vLLMHttpServer`."""

    def __init__(self, worker: LocalWorker) -> None:
        self._worker = worker
        self.asked: list[list[int]] = []
        self.generate = SimpleNamespace(remote=self._generate)

    async def _generate(
        self, *, request_id: str, prompt_ids: list[int], sampling_params: dict[str, Any]
    ) -> SimpleNamespace:
        assert request_id
        self.asked.append(prompt_ids)
        answer = await self._worker.generate(prompt=prompt_ids, model="policy", **sampling_params)
        return SimpleNamespace(token_ids=answer["choices"][0]["token_ids"])


class LLMServerClient:
    """verl's: made by its manager, which hands on what else it is given."""

    def __init__(self, config: object, load_balancer_handle: object) -> None:
        self.config, self.load_balancer_handle = config, load_balancer_handle


async def test_verl_s_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, "verl.workers.rollout.llm_server", LLMServerClient=LLMServerClient)
    async with fleet(tmp_path) as made:
        code = VERL.replace("127.0.0.1:7400", made.router)
        client_class = module("warmpath_client", code, monkeypatch).WarmpathClient
        handles = {worker.address: Handle(worker) for worker in made.workers.values()}
        client = client_class({}, handles=handles, load_balancer_handle=None)
        async with client.warmpath:
            # A conversation of three turns, and another one beside it.
            for number in range(2):
                ids = [number, *PROMPT]
                for _ in range(3):
                    asked = {"prompt_ids": ids, "sampling_params": {"max_tokens": 4}}
                    ids = ids + (await client.generate(f"c{number}", **asked)).token_ids + [9] * 8
            decisions = await decided(made.router, 6)
    places = [{ids[0] for ids in handle.asked} for handle in handles.values()]
    assert places in ([{0}, {1}], [{1}, {0}], [{0, 1}, set()], [set(), {0, 1}])
    assert {one.state for one in decisions} == {pb.Decision.FINISHED}


async def test_slime_s_groups_stay_on_one_pod_each_and_a_flush_empties_the_view(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    went: dict[str, set[str]] = {}

    async def post(url: str, body: dict[str, Any]) -> dict[str, Any]:
        """Answer as SGLang does, by a worker that has vLLM's APIs."""
        base = url.removesuffix("/generate")
        went.setdefault(str(body["input_ids"][0]), set()).add(base)
        asked = {"model": "policy", "prompt": body["input_ids"], "max_tokens": 2}
        async with (
            aiohttp.ClientSession() as http,
            http.post(f"{base}/v1/completions", json=asked) as response,
        ):
            usage = (await response.json())["usage"]
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        meta = {"prompt_tokens": usage["prompt_tokens"], "cached_tokens": cached}
        return {"text": "", "meta_info": meta}

    stand_in(monkeypatch, "slime.utils.http_utils", post=post)
    async with fleet(tmp_path) as made:
        code = SLIME.replace("127.0.0.1:7400", made.router)
        page = module("warmpath_rollout", code, monkeypatch)
        samples = [
            SimpleNamespace(group_index=group, tokens=[group, *PROMPT])
            for group in range(6)
            for _ in range(4)
        ]
        async with page.router:
            await asyncio.gather(*(page.generate(None, one, {}) for one in samples))
            decisions = await decided(made.router, 24)
        assert [len(places) for places in went.values()] == [1] * 6
        assert set.union(*went.values()) == {f"http://{w.address}" for w in made.workers.values()}
        assert sum(one.cached_tokens for one in decisions) >= 6 * 3 * 200

        prompt = Prompt([0, *PROMPT])
        assert max(await until(lambda: made.matched(prompt))) == 200
        for worker in made.workers.values():
            assert (await worker.post("/reset_prefix_cache"))[0] == 200

        async def is_gone() -> bool:
            return max(await made.matched(prompt)) == 0

        # vLLM, and so the worker, sends the event with its next step.
        for worker in made.workers.values():
            await worker.generate(model="policy", max_tokens=1)
        await until(is_gone)


@pytest.mark.parametrize("has_events", [True, False])
async def test_a_new_salt_is_a_new_cache_at_once(tmp_path: Path, *, has_events: bool) -> None:
    old, new = Prompt(PROMPT, cache_salt="weights-1"), Prompt(PROMPT, cache_salt="weights-2")
    async with fleet(tmp_path, has_events=has_events) as made:
        async with made.client.request(old) as request:
            assert request.endpoint is not None
            worker = made.workers[request.endpoint.pod]
            await worker.generate(prompt=PROMPT, model="policy", cache_salt="weights-1")
        await decided(made.router, 1)
        async with made.client.request(old) as warm, made.client.request(new) as cold:
            assert warm.candidates[0].matched_tokens > 0
            assert {one.matched_tokens for one in cold.candidates} == {0}
