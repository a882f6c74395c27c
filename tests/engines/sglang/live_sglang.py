"""warmpath beside SGLang's own prefix caches, version by version: `make test-sglang`.

Each case drives SGLang's tree (`drive.py`, in an environment of its own) through random requests, and
compares what warmpath says of each one when it comes with what `match_prefix` finds: from the recorded
batches, and by a router that follows SGLang's own publisher.
"""

import asyncio
import json
import os
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.engines.sglang.replay import Answer, answers
from tests.fake_http import Answer as Http
from tests.fake_http import FakeHttp
from tests.router.running_router import running_router
from warmpath.indexer.trust import Level
from warmpath.lab.local.ports import HeldPorts
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.proto.pb.warmpath.v1 import router_pb2_grpc

FOLDER = Path(os.environ["WARMPATH_SGLANG_FOLDER"])
"""Holds the environment `v`, and SGLang's unpacked wheels (`install.py` makes it)."""
DRIVE = Path(__file__).with_name("drive.py")
TREES = {
    "0.5.7": "radix",
    "0.5.18": "radix",
    "0.5.20": "radix",
    "0.5.21": "rust",
    "0.5.22": "rust",
    "0.5.23": "rust",
}
"""The oldest version, the newest, and those that changed the stream; each one's default tree for a model
with full attention only."""
HOST = ("--host-pages", "160")


@dataclass(frozen=True)
class Case:
    version: str
    options: tuple[str, ...] = ()
    tree: str = ""
    seed: int = 1

    def command(self, *more: str) -> list[str]:
        return [
            str(FOLDER / "v" / "bin" / "python"), str(DRIVE),
            "--wheel", str(FOLDER / f"sglang-{self.version}"),
            "--tree", self.tree or TREES[self.version],
            "--seed", str(self.seed), *self.options, *more,
        ]  # fmt: skip

    def __str__(self) -> str:
        return " ".join((self.version, self.tree or TREES[self.version], *self.options))


def told(case: Case, folder: Path, *, pure: bool = False) -> list[Answer]:
    path = folder / "recording.jsonl.gz"
    if not path.exists():
        subprocess.run(case.command("--requests", "400", "--out", str(path)), check=True)
    return list(answers(path, pure=pure, version=case.version))


TOLD = [
    *(Case(version) for version in TREES),
    *(Case(version, ("--eagle",)) for version in TREES),
    *(Case(version, ("--salts",)) for version in TREES if version != "0.5.7"),
    Case("0.5.7", ("--page-size", "1", "--pages", "120")),
    Case("0.5.7", ("--policy", "lfu")),
    Case("0.5.21", HOST),
    Case("0.5.21", ("--salts",), tree="radix"),
    Case("0.5.23", ("--salts", "--loras", *HOST)),
    Case("0.5.23", ("--salts", "--loras", "--eagle", *HOST)),
    Case("0.5.23", ("--salts", "--loras"), tree="radix"),
    Case("0.5.23", ("--salts", "--loras", "--format", "dynamo")),
]
"""Cases whose events tell everything that keeps pages apart."""


@pytest.mark.parametrize("case", TOLD, ids=str)
def test_each_request_is_told_what_sglang_finds_in_each_tier(case: Case, tmp_path: Path) -> None:
    heard = told(case, tmp_path)
    assert [(number, one) for number, one in enumerate(heard) if not one.is_true] == []
    assert {one.trust.level for one in heard} == {Level.EXACT}
    assert sum(one.found > 0 for one in heard) > len(heard) // 4
    assert ("--host-pages" in case.options) == any(one.found > one.found_on_device for one in heard)
    assert told(case, tmp_path, pure=True) == heard


KEYS = {"--salts": "cache_salt", "--loras": "lora", "--extra-keys": "extra_key"}
UNTOLD = [
    Case("0.5.7", ("--salts",)),
    Case("0.5.18", ("--loras",)),
    Case("0.5.22", ("--loras",)),
    *(Case(version, ("--extra-keys",)) for version in TREES),
]
"""Cases with a key in their requests that no event of the version tells."""


@pytest.mark.parametrize("case", UNTOLD, ids=str)
def test_no_answer_is_exact_that_an_untold_key_makes_wrong(case: Case, tmp_path: Path) -> None:
    heard = told(case, tmp_path)
    wrong = [one for one in heard if not one.is_true]
    assert wrong
    assert {one.trust.level for one in wrong} == {Level.DEGRADED}
    untold = KEYS[case.options[0]]
    assert {one.said for one in heard if one.space[untold]} == {0}
    assert told(case, tmp_path, pure=True) == heard


WINDOW = ("--window", "4", "--page-size", "1", "--pages", "120")
STATES = ("--states", "12", "--page-size", "1", "--pages", "240")
HYBRID = [
    *(Case(version, WINDOW) for version in ("0.5.21", "0.5.23")),
    *(Case(version, STATES, "python") for version in ("0.5.18", "0.5.20")),
    *(Case(version, STATES) for version in ("0.5.21", "0.5.22", "0.5.23")),
]
"""Cases of models whose prefixes end where a window or a state is held, too."""


@pytest.mark.parametrize("case", HYBRID, ids=str)
def test_no_answer_is_exact_where_a_model_has_sliding_windows_or_states(
    case: Case, tmp_path: Path
) -> None:
    heard = told(case, tmp_path)
    wrong = [one for one in heard if not one.is_true]
    assert wrong
    assert all(one.said > one.found for one in wrong)
    # The events tell the full part of the cache.
    assert all(one.said == one.full for one in heard if one.full is not None)
    assert {one.trust.level for one in heard} == {Level.DEGRADED}


LIVE = [
    *(Case(version) for version in TREES),
    Case("0.5.21", ("--salts",)),
    Case("0.5.23", ("--eagle",)),
    Case("0.5.23", ("--salts", "--loras", *HOST)),
]


@pytest.mark.parametrize("late", [False, True], ids=["from the start", "late"])
@pytest.mark.parametrize("case", LIVE, ids=str)
async def test_a_router_follows_sglangs_own_publisher(case: Case, late: bool) -> None:
    count, skipped = 160, 80 if late else 0
    with HeldPorts() as ports:
        port = ports.take(1)
        async with driving(case.command("--requests", str(count), "--live", str(port))) as driver:
            for _ in range(skipped):
                await driver.request()
                driver.go_on()
            wrong = []
            async with routing(case, port) as router:
                for number in range(skipped, count):
                    line = await driver.request()
                    said = await router.matched(line)
                    if said != line["cached"]:
                        wrong.append((number, said, line["cached"]))
                    driver.go_on()
            assert wrong == []
            assert (await driver.request())["kind"] == "end"


@pytest.mark.parametrize("version", ["0.5.7", "0.5.23"])
async def test_a_router_keeps_data_parallel_ranks_apart(version: str) -> None:
    with HeldPorts() as ports:
        port = ports.take(1, 2, 3)
        live = "--requests", "80", "--live", str(port), "--ranks", "2"
        first, second = (
            Case(version, seed=1 + rank).command(*live, "--rank", str(rank)) for rank in (0, 1)
        )
        wrong, warm = [], 0
        async with (
            driving(first) as one,
            driving(second) as other,
            routing(Case(version), port, ranks=2) as router,
        ):
            for _ in range(80):
                for rank, driver in enumerate((one, other)):
                    line = await driver.request()
                    said = await router.matched(line, rank)
                    warm += said > 0
                    if said != line["cached"]:
                        wrong.append((rank, said, line["cached"]))
                    driver.go_on()
            for driver in (one, other):
                assert (await driver.request())["kind"] == "end"
        assert wrong == []
        assert warm > 40


@dataclass
class Driver:
    process: asyncio.subprocess.Process

    async def request(self) -> dict[str, Any]:
        """Return the next line, a request that waits to go on, or the end."""
        assert self.process.stdout
        return json.loads(await self.process.stdout.readline())

    def go_on(self) -> None:
        assert self.process.stdin
        self.process.stdin.write(b"\n")


@asynccontextmanager
async def driving(command: list[str]) -> AsyncIterator[Driver]:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, limit=1 << 22)
    try:
        yield Driver(process)
        await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


class Router:
    def __init__(self, stub: router_pb2_grpc.RouterStub) -> None:
        self.stub = stub

    async def matched(self, line: dict[str, Any], number: int = 0) -> int:
        """Return what the router says of a rank, once it is exact and has every batch published before."""
        prompt = pb.Prompt(
            model="m", token_ids=pb.TokenIds(ids=line["tokens"]),
            lora=line["lora"], cache_salt=line["cache_salt"],
        )  # fmt: skip
        while True:
            [pod] = (await self.stub.ListPods(pb.ListPodsRequest())).pods
            rank = pod.ranks[number]
            if rank.HasField("sequence") and rank.sequence >= line["published"]:
                scores = (await self.stub.Score(pb.ScoreRequest(prompt=prompt))).scores
                [score] = (one for one in scores if one.rank == number)
                if score.trust.level == pb.Trust.EXACT:
                    return score.matched_tokens
            await asyncio.sleep(0.01)


@asynccontextmanager
async def routing(case: Case, port: int, ranks: int = 1) -> AsyncIterator[Router]:
    """Start a router, which asks a stand-in for SGLang's HTTP server for the engine's version."""
    info = json.dumps({"version": case.version}).encode()
    with FakeHttp(lambda asked: Http(body=info if asked.path == "/server_info" else b"")) as http:
        tables = (
            '[[models]]\nname = "m"\nadapters = ["support", "legal"]\n'
            f'[[pods]]\nid = "s"\nmodel = "m"\nengine = "sglang"\naddress = "{http.url[7:]}"\n'
            f'events = "tcp://127.0.0.1:{port}"\nreplay = "tcp://127.0.0.1:{port + ranks}"\n'
            f"ranks = {ranks}\n"
        )
        async with running_router(FOLDER, tables, metrics="") as (_, channel):
            yield Router(router_pb2_grpc.RouterStub(channel))
