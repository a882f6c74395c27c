"""Coding agents' sessions through a real Envoy to simulated pods, with nothing configured for them.

The sub-agents' model has another name at the engines, so the second filter asks for them (external
processing).
"""

from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.cli.gateway.test_through_envoy import PATIENT, gateway
from tests.lab.simworker.local_worker import LocalWorker
from tests.router.pick_stand import pod
from tests.router.running_router import running_router
from tests.waiting import until
from warmpath.lab.local.cluster import WorkerSettings
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.proto.pb.warmpath.v1 import router_pb2_grpc

SETTINGS = WorkerSettings(blocks=16000, block_size=16, speed=1000.0, vocab_size=2048)
TURNS = 3
SYSTEM = "You are an agent that edits files and runs commands. " * 8
Turns = list[tuple[str, str]]
"""A role and a text each."""


def claude_code(model: str, turns: Turns, session: str) -> dict[str, Any]:
    texts = [{"type": "text", "text": SYSTEM, "cache_control": {"type": "ephemeral"}}]
    return {
        "model": model, "max_tokens": 32, "stream": True, "system": texts,
        "metadata": {"user_id": f"user_0123456789abcdef_account__session_{session}"},
        "messages": [{"role": role, "content": [{"type": "text", "text": text}]} for role, text in turns],
    }  # fmt: skip


def codex(model: str, turns: Turns, session: str) -> dict[str, Any]:
    kinds = {"user": "input_text", "assistant": "output_text"}
    return {
        "model": model, "instructions": SYSTEM, "stream": True, "store": False,
        "prompt_cache_key": session, "max_output_tokens": 32,
        "input": [
            {"type": "message", "role": role, "content": [{"type": kinds[role], "text": text}]}
            for role, text in turns
        ],
    }  # fmt: skip


def opencode(model: str, turns: Turns, _: str) -> dict[str, Any]:
    messages = [("system", SYSTEM), *turns]
    return {
        "model": model, "max_tokens": 32, "stream": True, "stream_options": {"include_usage": True},
        "messages": [{"role": role, "content": text} for role, text in messages],
    }  # fmt: skip


CLIENTS = {
    "claude-code": (
        ("/v1/messages?beta=true", claude_code),
        {"x-claude-code-session-id": "{id}"},
        {"x-claude-code-session-id": "{parent}", "x-claude-code-agent-id": "{id}"},
    ),
    "codex": (
        ("/v1/responses", codex),
        {"session-id": "{id}", "thread-id": "{id}"},
        {"session-id": "{parent}", "thread-id": "{id}", "x-codex-parent-thread-id": "{parent}"},
    ),
    "codex, an older one": (("/v1/responses", codex), {"session_id": "{id}"}, None),
    # Other gateways in front drop headers.
    "claude-code's bodies": (("/v1/messages", claude_code), {}, None),
    "codex' bodies": (("/v1/responses", codex), {}, None),
    "opencode": (
        ("/v1/chat/completions", opencode),
        {"x-session-affinity": "{id}", "X-Session-Id": "{id}"},
        {"x-session-affinity": "{id}", "X-Session-Id": "{id}", "x-parent-session-id": "{parent}"},
    ),
}


class Agent(NamedTuple):
    """An agent, whose requests have these headers."""

    session: str
    headers: Mapping[str, str]
    model: str = "demo"
    parent: str = ""

    def turns(self, number: int) -> Turns:
        """Return the messages of its request of a number, which begin with those of the one before."""
        asked = ("user", f"Tell {self.session} what the file number {number} says. " * 60)
        if not number:
            return [asked]
        return [*self.turns(number - 1), ("assistant", "Reading it. " * 4), asked]


@pytest.mark.parametrize("client", CLIENTS)
async def test_a_session_keeps_its_pod_and_is_found_among_the_decisions(
    tmp_path: Path, model_folder: Path, client: str
) -> None:
    (path, body), own, of_sub_agent = CLIENTS[client]
    ids = [f"0197a3c0-7d52-7f10-9a00-00000000000{number}" for number in range(4)]
    agents = [
        Agent(one, {name: value.format(id=one) for name, value in own.items()}) for one in ids[:3]
    ]
    if of_sub_agent:
        named = {"id": ids[3], "parent": ids[0]}
        headers = {name: value.format(**named) for name, value in of_sub_agent.items()}
        agents.append(Agent(ids[3], headers, "fast", ids[0]))
    async with AsyncExitStack() as stack:
        tables = f'{PATIENT}rewrites = {{ fast = "demo" }}\n[[models]]\nname = "demo"\ntokenizer = "{model_folder}"\n'
        addresses = {}
        for name in ("pod-1", "pod-2"):
            worker = LocalWorker.of(SETTINGS, f"--tokenizer={model_folder}")
            await stack.enter_async_context(worker)
            tables += pod(name, worker.address, events=worker.events, replay=worker.replay)
            addresses[name] = worker.address
        router, channel = await stack.enter_async_context(running_router(tmp_path, tables))
        stub = router_pb2_grpc.RouterStub(channel)

        async def is_exact() -> bool:
            listed = (await stub.ListPods(pb.ListPodsRequest())).pods
            return all(rank.trust.level == pb.Trust.EXACT for one in listed for rank in one.ranks)

        await until(is_exact)
        http = await stack.enter_async_context(gateway(router.address, addresses))

        async def asks(agent: Agent, number: int) -> str:
            sent = body(agent.model, agent.turns(number), agent.session)
            async with http.post(path, json=sent, headers=agent.headers) as answer:
                assert answer.status == 200, await answer.text()
                await answer.read()
                cached = int(answer.headers["x-warmpath-cached-tokens"])
                assert cached > 0 or not number
                return answer.headers["x-warmpath-pod"]

        served = [[await asks(one, number) for one in agents] for number in range(TURNS)]
        for agent, pods in zip(agents, zip(*served, strict=True), strict=True):
            assert len(set(pods)) == 1, served
            asked = pb.ListDecisionsRequest(session_id=agent.session)
            listed = (await stub.ListDecisions(asked)).decisions
            mine = [one for one in listed if one.session_id == agent.session]
            assert [one.pod for one in mine] == [*pods]
            assert {one.parent_session_id for one in mine} == {agent.parent}
            others = [one for one in listed if one not in mine]
            is_parent = bool(of_sub_agent) and agent.session == ids[0]
            assert [one.session_id for one in others] == [ids[3]] * TURNS * is_parent
