"""Clients that spoil their own caches: found by how their sessions' prompts go on."""

import json
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from random import Random

import pytest
from msgspec.structs import replace

from tests.router.endpoint_picker.test_plain_calls import calling
from tests.router.pick.weighed import BLOCK, choice, option, placed
from tests.router.pick_stand import QUIET, pod
from tests.router.running_router import TRANSPORT, metrics_of, running_router
from warmpath.indexer.embedded import stored_keys
from warmpath.indexer.engines.cache_groups import Lookahead
from warmpath.indexer.keys.key import pack_tokens
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.proto.pb.warmpath.v1 import router_pb2_grpc
from warmpath.router.diagnosis.clients import (
    FIRST,
    LINE_BYTES,
    MOST_BYTES,
    MOST_CLIENTS,
    OTHERS,
    Client,
    Clients,
)
from warmpath.router.diagnosis.place import BY_TEMPLATE, place_of
from warmpath.router.pick.weigh import Ask
from warmpath.router.prompt.token_prompt import TokenPrompt

TOKENIZER = Path("deploy/compose/tokenizer").resolve()
RNG = Random(7)


def tokens(number: int) -> list[int]:
    """Return new tokens."""
    return [RNG.randrange(1000, 30_000) for _ in range(number)]


def a_session(clock: Callable[[], list[int]], system: int = 400) -> Iterator[list[int]]:
    """Yield the prompts of a session that begin with half of a system prompt, the clock and the rest."""
    begin, rest = tokens(system // 2), tokens(system // 2)
    while True:
        yield begin + clock() + rest
        rest = rest + tokens(150)


class Stand:
    """Takes picks of one client."""

    def __init__(self) -> None:
        self.clients = Clients()

    def pick(
        self,
        ids: list[int],
        session: str = "",
        *,
        client: str = "agent",
        at: float = 1.0,
        ends: bool = False,
    ) -> None:
        prompt = TokenPrompt("m", pack_tokens(ids))
        made = choice(option("a"), tokens=len(ids))
        ask = Ask(
            prompt, made.ask.field, made.ask.wanted, session=session, client=client, ids=prompt.ids,
            ends_session=ends,
        )  # fmt: skip
        made = replace(made, ask=ask)
        one = placed(made, at=at)
        one.client = client
        one.keys = {(BLOCK, Lookahead.NONE): stored_keys(prompt.chain(BLOCK, "seed"))}
        self.clients.picked(one, made)

    @property
    def client(self) -> Client:
        [client] = self.clients
        return client


def counted() -> Callable[[], list[int]]:
    """Return a clock that each prompt writes as six other tokens."""
    numbers = count(40_000, 6)
    return lambda: [at := next(numbers), at + 1, at + 2, at + 3, at + 4, at + 5]


@pytest.mark.parametrize("names", [("",), ("s1",), ("s1", "s2", "s3", "s4"), ("", "", "")])
def test_a_clock_in_sessions_prompts_is_named_and_healthy_sessions_are_not(
    names: tuple[str, ...],
) -> None:
    spoiled, healthy = Stand(), Stand()
    clock = counted()
    talks = [a_session(clock) for _ in names]
    well = [a_session(lambda: [5, 5]) for _ in names]
    for turn in range(48):
        at = turn % len(names)
        spoiled.pick(next(talks[at]), names[at])
        healthy.pick(next(well[at]), names[at])
    assert spoiled.client.spoils
    assert spoiled.client.alike_tokens == 192, "200 tokens in blocks of 16"
    assert spoiled.client.lost > 0.7 * spoiled.client.tokens
    assert not healthy.client.spoils
    assert healthy.client.spoiled_tokens == 0 < healthy.client.compared_tokens


def test_prompts_that_go_on_with_none_are_not_compared() -> None:
    stand, begin, end = Stand(), tokens(300), tokens(100)
    for _ in range(60):
        stand.pick(begin + tokens(500) + end)
    assert stand.client.compared_tokens == 0
    assert not stand.client.spoils


def test_marks_that_move_near_the_end_and_prompts_that_are_cut_once_are_no_fault() -> None:
    stand, talk = Stand(), a_session(lambda: [5, 5], system=3000)
    clock = counted()
    for turn in range(40):
        ids = next(talk)
        stand.pick((ids[:40] + ids[900:] if turn == 20 else ids) + clock(), "s")
    assert stand.client.compared_tokens
    assert not stand.client.spoils


def test_a_client_that_was_mended_is_named_no_more() -> None:
    stand, clock = Stand(), counted()
    mended: list[int] = []
    talk = a_session(lambda: mended or clock())
    for _ in range(FIRST // 2):
        stand.pick(next(talk))
    assert stand.client.spoils
    mended += [5, 5]
    for _ in range(FIRST // 2):
        stand.pick(next(talk))
    assert not stand.client.spoils


def test_a_session_that_ends_leaves_no_prompt_behind() -> None:
    stand = Stand()
    for session in ("s", "t"):
        stand.pick(tokens(400), session)
    half = stand.client.held_bytes // 2
    stand.pick([1], "s", ends=True)
    assert [name[0] for name in stand.client.sessions] == ["t"]
    assert stand.client.held_bytes == half > 0


def test_clients_and_their_kept_prompts_are_bounded() -> None:
    stand = Stand()
    for number in range(MOST_CLIENTS + 5):
        stand.pick(tokens(200), client=f"c{number}")
    assert len([*stand.clients]) == MOST_CLIENTS + 1
    assert (
        next(one.picks for one in stand.clients if (one.model, one.name, one.tenant) == OTHERS) == 5
    )
    stand.pick(tokens(200), client="new", at=5000.0)
    assert "new" in {one.name for one in stand.clients}
    assert len([*stand.clients]) == MOST_CLIENTS + 1
    one = Stand()
    for number in range(FIRST):
        one.pick(tokens(60_000), str(number))
    kept = [line for lines in one.client.sessions.values() for line in lines]
    assert one.client.held_bytes == sum(len(line.keys) + LINE_BYTES for line in kept) <= MOST_BYTES


def body(*messages: tuple[str, object], **fields: object) -> pb.Prompt:
    chat = [{"role": role, "content": content} for role, content in messages]
    return pb.Prompt(chat_body=json.dumps({"messages": chat, **fields}).encode())


@pytest.mark.parametrize(
    ("before", "after", "place"),
    [
        (body(("system", "It is 12:01.")), body(("system", "It is 12:45.")), "in messages[0] (role system).content, character 9"),
        (body(("user", [{"type": "text", "text": "a"}, {"type": "text", "text": "b1"}])), body(("user", [{"type": "text", "text": "a"}, {"type": "text", "text": "b2"}])), "in messages[0] (role user).content[1].text, character 1"),
        (body(("system", "x-anthropic-billing-header: 1\nsay 1")), body(("system", "x-anthropic-billing-header: 23\nsay 2")), "in messages[0] (role system).content, character 35"),
        (body(("user", "a"), tools=[{"secret": 1}]), body(("user", "a"), tools=[{"secret": 2}]), "in tools[0]"),
        (body(("user", "a")), body(("user", "a"), ("assistant", "b")), BY_TEMPLATE),
        (body(("user", "a"), cache_salt="x"), body(("user", "a"), cache_salt="y"), "in cache_salt, character 0"),
        (pb.Prompt(text="say a"), pb.Prompt(text="say b"), "in the text, character 4"),
        (pb.Prompt(token_ids_packed=b"1234"), pb.Prompt(token_ids_packed=b"1235"), ""),
    ],
)  # fmt: skip
def test_a_place_is_told_by_message_and_character_and_never_by_its_text(
    before: pb.Prompt, after: pb.Prompt, place: str
) -> None:
    assert place_of(before, after) == place


@pytest.mark.skipif(TRANSPORT == "grpcio", reason="only nghttp2 serves HTTP/1.1")
async def test_a_gateways_client_with_a_clock_is_named_within_50_requests_with_its_place(
    tmp_path: Path,
) -> None:
    tables = (
        f'[[models]]\nname = "demo"\ntokenizer = "{TOKENIZER}"\n{QUIET}{pod("a", "10.0.0.1:80")}'
    )
    words = " ".join(f"rule {RNG.random()}" for _ in range(60))
    async with running_router(tmp_path, tables) as (router, channel):
        stub = router_pb2_grpc.RouterStub(channel)
        async with calling(router.address) as caller:
            for client in ("clocked-cli/1.2 (x)", "well-cli/3"):
                messages = [{"role": "system", "content": ""}]
                for turn in range(25):
                    messages += [
                        {"role": "assistant", "content": f"I did {RNG.random()}"},
                        {"role": "user", "content": f"and then {RNG.random()}"},
                    ]
                    now = f"16:{turn + 10}:00"
                    # The line of the second one changes, too, but engines strip it.
                    messages[0]["content"] = (
                        f"Help. Now {now}. {words}"
                        if client.startswith("clocked")
                        else f"x-anthropic-billing-header: {now}\nHelp. {words}"
                    )
                    headers = {"user-agent": client, "x-gateway-inference-fairness-id": "team"}
                    chat = json.dumps({"model": "demo", "messages": messages}).encode()
                    assert (
                        await caller.ask(chat, headers, "/pick/v1/chat/completions")
                    ).status == 200
        found = (await stub.Diagnose(pb.DiagnoseRequest(), timeout=30)).findings
        [finding] = [one for one in found if one.kind == "spoiled"]
        told = await metrics_of(router.http_address)
    assert "the client clocked-cli of tenant 'team'" in finding.text
    assert "(in messages[0] (role system).content, character 14)" in finding.text
    labels = '{client="well-cli",model="demo",tenant="team"}'
    saved = f"warmpath_client_saved_seconds_total{labels}"
    assert told[saved] > told[saved.replace("well", "clocked")]
    well, clocked = (
        told[f"warmpath_client_captured_tokens_total{one}"]
        / told[f"warmpath_client_prompt_tokens_total{one}"]
        for one in (labels, labels.replace("well", "clocked"))
    )
    assert well > 0.8
    assert clocked < 0.2
    assert told[f"warmpath_client_spoiled_tokens_total{labels}"] == 0
    assert told[f"warmpath_client_compared_tokens_total{labels}"] > 0
    assert told[f"warmpath_client_spoiled_tokens_total{labels}".replace("well", "clocked")] > 0
