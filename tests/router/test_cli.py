"""The command line: what a user types, and what they see."""

import asyncio
import io
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import grpc.aio
import pytest

from warmpath.cli import asking as client
from warmpath.cli import main as cli
from warmpath.indexer.keys.key import pack_tokens
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.proto.pb.warmpath.v1 import router_pb2_grpc


class OnePod(router_pb2_grpc.RouterServicer):
    """Answers every prompt with one pod, and keeps what was asked."""

    def __init__(self) -> None:
        self.asked: list[pb.ScoreRequest] = []
        self.address = ""

    async def run(self, main: Callable[[list[str]], int], *args: str) -> int:
        """Run a command that asks it."""
        return await asyncio.to_thread(main, ["--router", self.address, *args])

    async def Score(  # noqa: N802
        self, request: pb.ScoreRequest, context: grpc.aio.ServicerContext[object, object]
    ) -> pb.ScoreResponse:
        self.asked.append(request)
        if request.strategy:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "strategy: is unknown")
        trust = pb.Trust(level=pb.Trust.EXACT, reason="followed from the first batch")
        score = pb.PodScore(pod="pod-a", score=32, matched_tokens=32, trust=trust, ready=True)
        score.tiers.add(tier="gpu", tokens=32)
        return pb.ScoreResponse(prompt_tokens=64, scores=[score])

    async def ListPods(  # noqa: N802
        self, request: pb.ListPodsRequest, context: grpc.aio.ServicerContext[object, object]
    ) -> pb.ListPodsResponse:
        del request, context
        ranks = [pb.Rank(block_size=16, copies=94, capacity=95), pb.Rank()]
        return pb.ListPodsResponse(pods=[pb.Pod(id="pod-a", ranks=ranks)])


@pytest.fixture
async def router() -> AsyncIterator[OnePod]:
    server = grpc.aio.server()
    servicer = OnePod()
    router_pb2_grpc.add_RouterServicer_to_server(servicer, server)
    servicer.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    yield servicer
    await server.stop(None)


async def test_a_score_is_a_table_that_says_how_warm_and_how_sure(
    router: OnePod, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await router.run(client.score_main, "--model=m", "hello") == 0
    printed = capsys.readouterr().out
    for part in ("64 tokens", "pod-a", "32", "50%", "gpu 32", "exact: followed from"):
        assert part in printed
    assert router.asked[0].prompt == pb.Prompt(model="m", text="hello")


async def test_a_score_in_json_has_the_contracts_own_names(
    router: OnePod, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await router.run(client.score_main, "--json", "hello") == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["scores"][0]["matched_tokens"] == 32
    assert answer["scores"][0]["rank"] == 0


@pytest.mark.parametrize(
    ("option", "content", "field", "value"),
    [
        ("--file", "some text", "text", "some text"),
        ("--chat-file", '{"messages": []}', "chat_body", b'{"messages": []}'),
        ("--completions-file", '{"prompt": ""}', "completions_body", b'{"prompt": ""}'),
        ("--token-ids-file", "[1, 2,\n 3]", "token_ids_packed", pack_tokens([1, 2, 3])),
        ("--token-ids-file", "1 2 3\n", "token_ids_packed", pack_tokens([1, 2, 3])),
    ],
)
async def test_a_prompt_may_come_from_a_file(
    router: OnePod, tmp_path: Path, option: str, content: str, field: str, value: object
) -> None:
    path = tmp_path / "prompt"
    path.write_text(content, encoding="utf-8")
    assert await router.run(client.score_main, option, str(path)) == 0
    assert getattr(router.asked[0].prompt, field) == value


async def test_a_prompt_may_come_from_standard_input(
    router: OnePod, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("from a pipe"))
    assert await router.run(client.score_main, "-") == 0
    assert router.asked[0].prompt.text == "from a pipe"


async def test_what_the_router_refuses_is_said_with_status_and_reason(
    router: OnePod, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await router.run(client.score_main, "--strategy=x", "hello") == 1
    assert capsys.readouterr().err == "warmpath: INVALID_ARGUMENT: strategy: is unknown\n"


async def test_pods_are_listed(router: OnePod, capsys: pytest.CaptureFixture[str]) -> None:
    assert await router.run(client.pods_main) == 0
    printed = capsys.readouterr().out
    assert "pod-a" in printed
    assert "94 / 95" in printed
    assert "? / ?" in printed


@pytest.mark.parametrize("args", [[], ["text", "--file", "x"], ["--token-ids-file", "/nowhere"]])
def test_a_prompt_given_never_or_twice_or_wrongly_is_refused(
    args: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert client.score_main(args) == 2
    assert capsys.readouterr().err.startswith("warmpath score: ")


@pytest.mark.parametrize(
    "content", ["[1,2", "[[1, 2]]", "[1, -3]", "1 x", "[1.5]", "{}", "[4294967296]"]
)
def test_what_is_no_list_of_token_ids_is_refused_by_option(
    content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "ids"
    path.write_text(content, encoding="utf-8")
    assert client.score_main(["--token-ids-file", str(path)]) == 2
    assert "--token-ids-file" in capsys.readouterr().err


def test_a_file_that_is_no_text_is_refused_by_option(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "binary"
    path.write_bytes(b"\xff\xfe\x00")
    assert client.score_main(["--file", str(path)]) == 2
    assert "--file" in capsys.readouterr().err


def test_every_command_is_listed_with_what_it_does(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 0
    printed = capsys.readouterr().out
    for name in ("check-config", "demo", "pods", "record", "score", "serve", "verify"):
        line = next(line for line in printed.splitlines() if line.split()[:1] == [name])
        assert len(line.split()) > 2


def test_an_unknown_command_gets_the_nearest_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["scroe"]) == 2
    assert "did you mean 'score'?" in capsys.readouterr().err
