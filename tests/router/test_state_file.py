"""What a router saves when it ends, and what the next one makes of it."""

import asyncio
import stat
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
import grpc.aio
import pytest

from bench.cluster import MODEL, Process, Worker, WorkerSettings
from indexer.token import pack_tokens
from router import state_file
from router.assemble import running
from router.pb.warmpath.v1 import router_pb2 as pb
from router.pb.warmpath.v1 import router_pb2_grpc
from router.read_config import parse

SETTINGS = WorkerSettings(blocks=400, block_size=16, speed=1000.0, vocab_size=32000)
IDS = list(range(100, 260))
FULL = (len(IDS) - 1) // 16 * 16


async def warm(worker: Worker, ids: list[int]) -> None:
    body = {"model": MODEL, "prompt": ids, "max_tokens": 1}
    url = f"http://{worker.address}/v1/completions"
    async with aiohttp.ClientSession() as http, http.post(url, json=body) as response:
        response.raise_for_status()


async def matched(worker: Worker, folder: Path, tokens: int, *, seed: str = "") -> pb.PodScore:
    """Serve a router until it says that so many tokens are matched, exactly; end it."""
    config = (
        '[server]\nlisten = "127.0.0.1:0"\nmetrics-listen = ""\n'
        f'[index]\nstate-file = "state"\nhash-seed = "{seed}"\n'
        f'[[models]]\nname = "{MODEL}"\n[[pods]]\nid = "p"\nmodel = "{MODEL}"\n'
        f'address = "{worker.address}"\nevents = "{worker.events}"\nreplay = "{worker.replay}"\n'
    )
    async with AsyncExitStack() as stack:
        router = await stack.enter_async_context(running(parse(config, "test"), folder))
        channel = await stack.enter_async_context(grpc.aio.insecure_channel(router.address))
        stub = router_pb2_grpc.RouterStub(channel)
        prompt = pb.Prompt(model=MODEL, token_ids_packed=pack_tokens(IDS))
        while True:
            response = await stub.Score(pb.ScoreRequest(prompt=prompt), timeout=5)
            score = response.scores[0]
            if score.trust.level == pb.Trust.EXACT and score.matched_tokens == tokens:
                return score
            await asyncio.sleep(0.01)


async def started(tmp_path: Path, *options: str) -> Worker:
    worker = Worker("w", Process("worker", tmp_path / "log"))
    await worker.start(SETTINGS, *options)
    return worker


async def test_a_router_goes_on_where_the_last_one_ended_though_the_replay_is_short(
    tmp_path: Path,
) -> None:
    worker = await started(tmp_path, "--buffer-steps=3")
    await warm(worker, IDS)
    await matched(worker, tmp_path, FULL)
    assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o600
    # One batch more is missed meanwhile. Without the file the first would be out of reach.
    await warm(worker, list(range(1000, 1100)))
    score = await matched(worker, tmp_path, FULL)
    assert score.trust.reason == "the gap was closed by replay"
    await worker.process.stop()


async def test_an_engine_that_restarted_meanwhile_is_not_believed_warm(tmp_path: Path) -> None:
    worker = await started(tmp_path)
    await warm(worker, IDS)
    await matched(worker, tmp_path, FULL)
    await worker.process.stop()
    await worker.start(SETTINGS)
    await matched(worker, tmp_path, 0)
    await worker.process.stop()


@pytest.mark.parametrize("damage", ["cut", "flipped", "version", "empty"])
async def test_a_damaged_file_is_named_and_the_router_starts_cold(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    worker = await started(tmp_path)
    await warm(worker, IDS)
    await matched(worker, tmp_path, FULL)
    path = tmp_path / "state"
    raw = path.read_bytes()
    path.write_bytes(
        {
            "cut": raw[:-5],
            "flipped": raw[:-5] + bytes([raw[-5] ^ 1]) + raw[-4:],
            "version": raw.replace(b"state 2", b"state 9", 1),
            "empty": b"",
        }[damage]
    )
    await matched(worker, tmp_path, FULL)
    assert "starting cold" in caplog.text
    await worker.process.stop()


def test_a_file_of_another_seed_is_refused(tmp_path: Path) -> None:
    state_file.save(tmp_path / "state", [], "one")
    assert state_file.load(tmp_path / "state", "one") == []
    with pytest.raises(state_file.BadStateError, match="hash-seed"):
        state_file.load(tmp_path / "state", "another")


def test_no_file_is_no_fault(tmp_path: Path) -> None:
    assert state_file.load(tmp_path / "none", "") == []
